# SPDX-License-Identifier: Apache-2.0
"""The loop over steps."""

import time
from collections.abc import Callable
from typing import Any

import jax

from ops import dispatch
from zaya_jax import config as config_lib
from zaya_jax import metrics
from zaya_jax.checkpoint.writing import manager
from zaya_jax.config import exit_codes
from zaya_jax.config.recipe import segments
from zaya_jax.data.ledger import book as book_lib
from zaya_jax.optim import groups
from zaya_jax.parallel import batch as batch_lib
from zaya_jax.report import data as data_lib
from zaya_jax.runtime import beats, processes, stop
from zaya_jax.train import guard as guard_lib
from zaya_jax.train import hooks as hooks_lib
from zaya_jax.train import start as start_lib

# Of a state, a batch, and who is told of programs that do not fit.
Compiler = Callable[[Any, Any, Callable[[str], None]], jax.stages.Compiled]


class NumericsError(RuntimeError):
  """Too many steps in a row were refused."""

  exit_code = exit_codes.NUMERICS


class Loop:
  """Training, from a state to the end of a segment of the run.

  Args:
    config: of the run.
    mesh: of all devices.
    batches: iterator with `state`, its position in the data.
    compiler: compiles the step.
    guard: takes the steps.
    hooks: what is done between steps.
    saved: where checkpoints go.
    report: hears of each step.
    book: the ledger.
  """

  def __init__(
    self,
    config: config_lib.Config,
    mesh: jax.sharding.Mesh,
    batches: Any,
    compiler: Compiler,
    guard: guard_lib.Guard,
    hooks: hooks_lib.Hooks,
    saved: manager.Manager,
    report: metrics.Reporter,
    book: book_lib.Book,
  ):
    self._config, self._mesh, self._batches = config, mesh, batches
    self._compiler, self._guard = compiler, guard
    self._hooks = hooks.in_order()
    self._saved, self._report, self._book = saved, report, book
    self._keep: Callable[[], None] | None = None

  def run(self, start: start_lib.Start, signal: stop.StopSignal) -> int:
    """Runs to the end or to a signal; returns the exit code."""
    data, last = self._config.data, segments.current(self._config).stop_step
    on = not segments.is_last(self._config)  # The next segment follows.
    state, total, measured = start.state, start.tokens, None
    tokens = data.batch_size * data.seq_len
    name = self._config.optim.name
    updated = groups.summary(state.params, optimizer=name)
    self._report.begins(self._batches.state, (*start.notes, *updated))
    for step in range(start.step + 1, last + 1):
      began, window = time.monotonic(), self._batches.state
      beats.enter('data', step)
      batch = batch_lib.put_batch(self._mesh, next(self._batches))
      waited = time.monotonic() - began
      if measured is None:
        self._compile(state, batch)
      beats.enter('step', step)
      state, new = self._guard.step(step, state, batch, window)
      self._report.push(step, new, tokens=tokens, data_s=waited)
      rows = window, self._batches.state
      self._book.push(step, rows, self._guard.digest, new)
      total += tokens
      if measured is not None:  # Of the step before: nothing stalls.
        self._check_numerics(measured)
        beats.finish(step - 1)
      measured = new
      name = processes.stop_at(step, signal.name)
      now = hooks_lib.Pause(
        step=step,
        state=state,
        measured=measured,
        tokens=total,
        last=step == last,
        stopping=bool(name) and (on or step < last),
      )
      self._pause(now)
      state = now.state
      if now.stopping:
        self._report.note(f'{name}: stopped after step {step}')
        self._finish(start, done=False)
        return exit_codes.STOPPED
    self._finish(start, done=True)
    return exit_codes.DONE

  def _compile(self, state, batch) -> None:
    beats.enter('compile')
    compiling = self._report.compiling('the training step')
    with compiling, jax.set_mesh(self._mesh):
      compiled = self._compiler(state, batch, self._report.note)
    processes.barrier('compiled')
    for note in dispatch.notes():
      self._report.note(note)
    self._guard.watch(compiled, state)

  def _pause(self, now: hooks_lib.Pause) -> None:
    """Does what is due; `now` gets the state to go on from."""
    due = [hook for hook in self._hooks if hook.is_due(now)]
    # The same in all processes: to settle a step they execute it together.
    if now.last or any(hook.reads_state for hook in due):
      now.state = self._guard.settle(now.state)
    if now.last:
      self._check_numerics(now.measured)
    for hook in due:
      hook.run(now)

  def _finish(self, start: start_lib.Start, *, done: bool) -> None:
    going_on = done and not segments.is_last(self._config)
    if not going_on:
      beats.enter('end')
    if start.fast:
      start.fast.close(done=done)
    if going_on:
      self._report.leaves()
      return
    newest = self._saved.newest_saved()
    self._report.finish(
      checkpoint=None if newest is None else self._saved.directory(newest),
      data=data_lib.lines(self._config.run_dir),
    )

  def _check_numerics(self, measured: dict[str, Any]) -> None:
    limit = self._config.optim.max_bad_steps
    if int(measured['optim/bad_steps']) < limit:
      return
    newest = self._saved.newest_saved()
    good = 'none was saved' if newest is None else self._saved.directory(newest)
    raise NumericsError(
      f'{limit} steps in a row were refused, for NaN, Inf or a spike '
      f'(--optim.max_bad_steps={limit}): none of them was applied. The last '
      f'good checkpoint: {good}. Lower --optim.lr={self._config.optim.lr}, '
      'look at the data, or raise --guard.spike_limit='
      f'{self._config.guard.spike_limit:g}.'
    )
