# SPDX-License-Identifier: Apache-2.0
"""Tells bad data from bad hardware while a run goes on.

A refused step leaves the state as it was, and holds it until this process,
which reads one step late, has seen it (`step.make_train_step(hold=True)`). So
it is executed again, by the same program, from the very same state, of which
nobody keeps a copy: once as it was, once with each device's rows moved to its
neighbour. Normal steps pay nothing; a refused one costs three more.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import numpy as np

from zaya_jax import config as config_lib
from zaya_jax.checkpoint import arrays
from zaya_jax.config import exit_codes
from zaya_jax.parallel import mesh as mesh_lib
from zaya_jax.train import state as state_lib
from zaya_jax.train import step as step_lib
from zaya_jax.train.trust import verdict, votes

_NAMED = 3  # Arrays and devices in a sentence.

State = state_lib.TrainState
Kind = Literal['refused_step', 'loss_spike', 'wrong_result', 'corrupt_replica']
Tell = Callable[[Kind, int, str, int | None, int | None], None]


class HardwareError(RuntimeError):
  """A device that computes or remembers wrong things."""

  exit_code = exit_codes.INTERNAL  # Without that device the run goes on.


@dataclasses.dataclass(kw_only=True)
class _Taken:
  """The newest step; `refused` is None as long as nobody has waited for it."""

  step: int
  window: int
  batch: Any
  measured: dict[str, Any]
  held: jax.Array
  losses: jax.Array
  refused: bool | None = None


class Guard:
  """Takes the steps of a run, and looks twice where something is odd.

  Args:
    config: of the run.
    mesh: of its devices.
    tell: called with the kind of `aegis.events`, the step, a sentence, the
      process that is to blame or None, and the newest step at which all copies
      agreed or None.

  Attributes:
    digest: of the batch of the newest step (`train.digest`).
  """

  def __init__(
    self,
    config: config_lib.Config,
    mesh: jax.sharding.Mesh,
    tell: Tell,
  ):
    self._mesh, self._tell = mesh, tell
    self._every = config.guard.vote_every
    self._batch_size = config.data.batch_size
    sizes = list(mesh.shape.values())
    # Neighbours along the first axis are farthest apart: of other nodes.
    self._axis = next((i for i, n in enumerate(sizes[:3]) if n > 1), None)
    self.digest: jax.Array | None = None
    self._run: Any = None
    self._last: _Taken | None = None
    self._vote: votes.Vote | None = None
    self._asked: tuple[int, jax.Array] | None = None
    self._agreed: int | None = None

  def watch(self, run: Callable, state: State) -> None:
    """Takes the compiled step; `state` says what there are copies of."""
    self._run, self._vote = run, votes.Vote(self._mesh, state)

  def step(
    self, step: int, state: State, batch: Any, window: int
  ) -> tuple[State, dict[str, Any]]:
    """Takes a step; settles the one before first, if that was refused.

    Args:
      step: its number, from 1.
      state: donated.
      batch: on the mesh.
      window: number of its first window.

    Returns:
      The state, and what the step measures, in which `settle` may change what
      a refused step has measured.

    Raises:
      HardwareError: as `settle` and `confirm`, of the step before.
    """
    state, taken = self._take(step, window, state, batch)
    if self._last:
      state = self.settle(state)
      if self._last.refused:  # Hence this one did nothing.
        state, taken = self._take(step, window, state, batch)
    self._last = taken
    self._count()
    if self._every and step % self._every == 0:
      self._ask(step, state)
    return state, taken.measured

  def settle(self, state: State) -> State:
    """Waits for the newest step; finds out why, if it was refused.

    Raises:
      HardwareError: if a device gives wrong results again and again.
    """
    last = self._last
    if last is None or last.refused is not None:
      return state
    last.refused = bool(last.held)
    if not last.refused:
      return state
    state = arrays.alone(state)
    first, moved = self._result(last), None
    state, again = self._again(state, last.batch)
    if self._axis is not None:
      state, moved = self._again(state, self._move(last.batch))
    cause, places = verdict.judge(first, again, moved, self._axis or 0)
    if cause == 'data':
      return self._skip(state, first, others=moved is not None)
    where, process = self._name(places)
    if cause == 'always':
      self._fail(
        'corrupt_replica',
        f'{self._describe(first)}; another device gave another result for the '
        f'same rows, so hardware is at fault: {where}',
        process,
      )
    state, retaken = self._take(
      last.step, last.window, self._small(state_lib.release)(state), last.batch
    )
    what = (
      f'{self._describe(first)}; executed again on the same devices it gave '
      f'{_numbers(again)}, so hardware is at fault: {where}'
    )
    if bool(retaken.held):
      self._fail('wrong_result', f'{what}; a third time it failed', process)
    last.measured.update(retaken.measured)
    what += '; the step was taken anew and counts'
    self._tell('wrong_result', last.step, what, process, self._agreed)
    return state

  def confirm(self, step: int, state: State) -> None:
    """Votes, and waits for it: before a state is saved.

    Raises:
      HardwareError: if copies differ.
    """
    if self._every:
      self._count()
      if self._agreed != step:
        self._ask(step, state)
        self._count()

  def _take(self, step, window, state, batch):
    with jax.transfer_guard('disallow'):
      state, measured = self._run(state, batch)
    self.digest = measured.pop(step_lib.DIGEST, None)
    return state, _Taken(
      step=step,
      window=window,
      batch=batch,
      held=measured.pop(step_lib.HELD),
      losses=measured.pop(step_lib.LOSSES),
      measured=measured,
    )

  def _again(self, state, batch):
    """Executes a step while the state is held: it does not change."""
    state, taken = self._take(0, 0, state, batch)
    return state, self._result(taken)

  def _result(self, taken):
    now_2 = [taken.measured[k] for k in ('train/loss', 'optim/grad_norm')]
    whole = jax.device_put(taken.losses, mesh_lib.sharding(self._mesh))
    losses = np.asarray(whole).reshape([*self._mesh.shape.values()])
    return verdict.Result(np.array([float(x) for x in now_2]), losses)

  def _move(self, batch):
    """Each device's rows on the next device along the axis."""
    axis = self._mesh.axis_names[self._axis]
    count = self._mesh.shape[axis]
    pairs = [(i, (i + 1) % count) for i in range(count)]
    rows = mesh_lib.spec('batch', 'length')
    move = lambda a: jax.lax.ppermute(a, axis, pairs)
    with jax.set_mesh(self._mesh):
      moved = mesh_lib.on_each(
        lambda tree: jax.tree.map(move, tree), in_specs=(rows,), out_specs=rows
      )
      return jax.jit(moved)(batch)

  def _skip(self, state, first, *, others):
    last = self._last
    now = (last.measured[k] for k in ('train/loss', 'optim/grad_norm'))
    state = self._small(state_lib.skip)(state, *now)
    for name in ('skipped', 'bad_steps'):
      last.measured[f'optim/{name}'] = np.asarray(getattr(state, name))
    where = 'and on others ' if others else ''
    alone = '' if others else ' (there is no other device to try)'
    self._tell(
      'loss_spike' if np.isfinite(first.now_2).all() else 'refused_step',
      last.step,
      f'{self._describe(first)}; executed again on the same devices {where}it '
      f'gave the same{alone}, so the data or the maths is at fault, not '
      'hardware; the step is skipped',
      None,
      self._agreed,
    )
    return state

  def _small(self, change):
    """A change of counters, compiled when it is wanted."""

    def run(*args):
      with jax.set_mesh(self._mesh):
        return jax.jit(change, donate_argnums=0)(*args)

    return run

  def _describe(self, first):
    start, last = self._last.window, self._last.window + self._batch_size - 1
    return (
      f'step {self._last.step} was refused: {_numbers(first)}, of the windows '
      f'{start} to {last}'
    )

  def _ask(self, step, state):
    if self._vote.leaves:
      self._asked = step, self._vote.start(state)

  def _count(self):
    if self._asked is None:
      return
    (step, prints), self._asked = self._asked, None
    found = self._vote.count(prints)
    if not found:
      self._agreed = step
      return
    worst = next((d for d in found if d.majority), found[0])
    where, process = self._name(worst.devices)
    names = ', '.join(worst.leaves[:_NAMED])
    if len(worst.leaves) > _NAMED:
      names += f' and {len(worst.leaves) - _NAMED} more'
    if worst.majority:
      what = f'{where} holds another copy of {names} than most devices do'
    else:
      what = (
        f'{where} hold different copies of {names}, and none has a majority'
      )
    good = 'never' if self._agreed is None else f'after step {self._agreed}'
    self._fail(
      'corrupt_replica',
      f'after step {step} {what}; they last agreed {good}',
      process if worst.majority else None,
      step,
    )

  def _name(self, places):
    """Devices in words, and their process if they have one in common."""
    if not places:
      return 'which device is not known, its part of the loss was right', None
    devices = [self._mesh.devices.flat[place] for place in places]
    words = ' and '.join(
      f'device {d.id} of process {d.process_index}' for d in devices[:_NAMED]
    )
    if len(devices) > _NAMED:
      words += f' and {len(devices) - _NAMED} more'
    processes = {d.process_index for d in devices}
    return words, processes.pop() if len(processes) == 1 else None

  def _fail(self, kind, what, process, step=None):
    self._tell(kind, step or self._last.step, what, process, self._agreed)
    raise HardwareError(
      f'{what}. Nothing was saved since they agreed: run the same command '
      'without that device, and it goes on from the newest checkpoint.'
    )


def _numbers(result: verdict.Result) -> str:
  loss, norm = result.now_2
  return f'loss {loss:.4g} and gradient norm {norm:.4g}'
