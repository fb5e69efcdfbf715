# SPDX-License-Identifier: Apache-2.0
"""What a supervisor prints: lines for people, and how the time was spent."""

import time
from collections.abc import Sequence

from zaya_jax.aegis.decide import events
from zaya_jax.aegis.decide import state as state_lib

_FEW = 8  # Names in a line.


class Ledger:
  """Prints what happens to a run."""

  def __init__(self):
    self._start = time.monotonic()
    self._epoch = time.time() - self._start
    self._failed: float | None = None  # When; None while a generation trains.
    self._origin = 0  # The step from which this generation goes on.
    self._reached = 0  # The last step that any rank entered.
    self._lost_s, self._redone, self._generations = 0.0, 0, 0

  def now_s(self) -> float:
    """Seconds since 1970, by a clock that never steps back."""
    return self._epoch + time.monotonic()

  def say(self, words: str) -> None:
    """Prints a line."""
    print(f'aegis: {words}', flush=True)

  def begin(
    self, state: state_lib.State, step: int | None, coordinator: str
  ) -> None:
    """Says that a generation starts from the checkpoint of `step`."""
    self._generations += 1
    self._origin = step or 0
    if self._failed is None:
      self._failed = time.monotonic()
    where = _some(state.nodes)
    spares = f'; spare: {_some(state.spares)}' if state.spares else ''
    origin = f'goes on from step {step}' if step else 'starts'
    self.say(
      f'generation {state.generation} {origin} on {where} ({coordinator})'
      f'{spares}'
    )

  def running(self, state: state_lib.State) -> None:
    """Says that it has finished its first step."""
    now = time.monotonic()
    took = now - (self._failed or now)
    self._failed = None
    self._lost_s += took
    if self._generations == 1:
      self.say(f'generation {state.generation} trains after {took:.1f} s')
      return
    again = max(0, self._reached - self._origin)
    self._redone += again
    self.say(
      f'generation {state.generation} trains, {took:.1f} s after the failure; '
      f'{again} steps are done again'
    )

  def seen(self, event: events.Event, action: events.Action) -> None:
    """Says what happened, unless it is ordinary, and what is done."""
    if event.kind in ('exit', 'hang', 'agent_lost'):
      self._failed = self._failed or time.monotonic()
      self._reached = max(self._reached, event.step or 0)
    if action.kind == 'ignore':
      return
    where = '' if event.node is None else f' on {event.node}'
    what = action.reason or event.detail or event.kind + where
    advice = ''.join(f'; next: {command}' for command in action.run)
    self.say(f'{what} -> {action.kind.replace("_", " ")}{advice}')

  def end(self, code: int) -> None:
    """Says that the run ends with an exit code."""
    total = time.monotonic() - self._start
    share = 100 * max(0.0, 1 - self._lost_s / total)
    self.say(
      f'exit code {code} after {total:.1f} s; generations: '
      f'{self._generations}; {share:.1f}% of the time in training; '
      f'{self._redone} steps done twice'
    )


def _some(nodes: Sequence[str]) -> str:
  """Their names, if these are few."""
  if len(nodes) <= _FEW:
    return ', '.join(nodes)
  return f'{nodes[0]}, {nodes[1]} … {nodes[-1]} ({len(nodes)} nodes)'
