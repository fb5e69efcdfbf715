# SPDX-License-Identifier: Apache-2.0
"""The one place where the host reads what a step measured, one step late.

By the time step s has been dispatched, the values of step s - 1 are read: the
device always has work. Every `--log.every` steps the values since the last line
become one row, under the same names in metrics.jsonl and wherever it goes.
"""

import contextlib
import dataclasses
import math
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from zaya_jax import config as config_lib
from zaya_jax.config.recipe import segments
from zaya_jax.metrics import console, experts, recorder, summary, text, window
from zaya_jax.metrics import course as course_lib
from zaya_jax.metrics import trackers as trackers_lib
from zaya_jax.model import flops

_BEST = 'val/bpb'


@dataclasses.dataclass(frozen=True)
class _Step:
  """What is known of a step; `measured` may still be on its way."""

  step: int
  measured: Mapping[str, Any]
  tokens: int
  data_s: float
  done_at: float | None  # When it was done, if it was when it was pushed.


class Reporter:
  """Shows a run and records it in `run_dir`. Use it in a `with` block.

  Steps count from 1: step s is the one after which s steps are done.

  Attributes:
    train_loss: of the last row, or the mean of the steps read since.
  """

  def __init__(
    self,
    config: config_lib.Config,
    *,
    run_dir: str,
    num_params: int,
    active_params: int,
    flops_per_token: float,
    epochs: Callable[[int], float],
    device_kind: str,
    num_devices: int,
    start_step: int = 0,
    start_tokens: int = 0,
    process: int = 0,
    again: bool = False,
    followers: Mapping[str, trackers_lib.Tracker] = trackers_lib.NONE,
  ):
    """Opens the files of a run.

    Args:
      config: of the run.
      run_dir: where to write; made if it does not exist.
      num_params: parameters, all of them.
      active_params: parameters that one token uses, without embedding.
      flops_per_token: of forward and backward pass, for MFU.
      epochs: how often so many tokens of the run have read the text; of a
        mixture, the folder that is repeated most often.
      device_kind: as `jax.devices()[0].device_kind`.
      num_devices: that share the work.
      start_step: steps done before, 0 in a new run. Lines of later steps,
        which a killed process has left, are dropped.
      start_tokens: tokens trained on before.
      process: of several processes only 0 shows and records; each has a log.
      again: the terminal shows this run already.
      followers: of the run, by the flags that name them.
    """
    self._config = config
    self._run_dir = pathlib.Path(run_dir)
    self._run_dir.mkdir(parents=True, exist_ok=True)
    self._flops_per_token, self._epochs = flops_per_token, epochs
    peak = config.log.peak_tflops or flops.peak_tflops(device_kind)
    self._peak = peak and peak * 1e12 * num_devices
    self._opening = summary.opening(
      num_params=num_params,
      active_params=active_params,
      flops_per_token=flops_per_token,
      devices=f'{num_devices} x {device_kind}',
      peak_flops=self._peak,
    )
    self._again, self._followers = again, followers
    self._step, self._tokens = start_step, start_tokens
    self._first = process == 0
    self._log = f'logs/process_{process:05d}.log' if process else 'log.txt'
    self._pending: _Step | None = None
    self._window = window.Window()
    self.train_loss = math.nan
    self._open = contextlib.ExitStack()

  def __enter__(self) -> 'Reporter':
    enter = self._open.enter_context
    nowhere = None if self._first else enter(open(os.devnull, 'w'))
    self._console = enter(console.Console(self._run_dir / self._log, nowhere))
    self._recorder = enter(
      recorder.Recorder(
        self._config,
        self._run_dir,
        last_step=self._step,
        first=self._first,
        trying=self._console.trying,
        followers=self._followers,
      )
    )
    scored = [row for row in self._recorder.history if row.get(_BEST)]
    self._best = min(scored, key=lambda row: row[_BEST], default=None)
    for line in () if self._again else self._opening:
      self.note(line)
    self._mark = time.monotonic()
    return self

  def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
    with self._open:
      if error is None:
        self.flush()

  @contextlib.contextmanager
  def compiling(self, what: str) -> Iterator[None]:
    """Says that `what` is compiled, and then how long it took."""
    self.note(f'compiling {what} ...')
    start = time.monotonic()
    with self.aside('compiling'):
      yield
    self.note(f'compiled {what} in {self._mark - start:.1f} s')

  @contextlib.contextmanager
  def aside(self, what: str) -> Iterator[None]:
    """Keeps the time of `what` out of the throughput.

    All steps pushed so far are written first, so a checkpoint saved inside
    never gets ahead of metrics.jsonl.

    Args:
      what: said in front of the progress bar, for example 'saving'.
    """
    self.flush()
    self._console.status(what)
    yield
    self._console.status('training')
    self._mark = time.monotonic()

  def push(
    self,
    step: int,
    measured: Mapping[str, Any],
    *,
    tokens: int,
    data_s: float,
  ) -> None:
    """Takes what step `step` measures; reads what the step before measured.

    Args:
      step: the step just dispatched.
      measured: scalar jax arrays under the names of metrics.jsonl, and what
        `experts.ARRAYS` names.
      tokens: of this step.
      data_s: seconds that the step waited for its batch.
    """
    # A backend that computes while it dispatches is done already.
    ready = all(value.is_ready() for value in measured.values())
    self.flush()
    done_at = time.monotonic() if ready else None  # After the step before.
    self._pending = _Step(step, measured, tokens, data_s, done_at)

  def flush(self) -> None:
    """Reads the step that was pushed last; waits until it is done."""
    if self._pending is None:
      return
    done, self._pending = self._pending, None
    values = {
      name: float(np.asarray(value))
      for name, value in done.measured.items()
      if name not in experts.ARRAYS
    }
    done_at = done.done_at or time.monotonic()
    step_s, self._mark = done_at - self._mark, done_at
    self._step, self._tokens = done.step, self._tokens + done.tokens
    self._recorder.routes(done.step, done.measured)
    self._window.add(
      values, tokens=done.tokens, step_s=step_s, data_s=done.data_s
    )
    self.train_loss = self._window.mean('train/loss')
    self._advance(values.get('train/loss', math.nan))
    every, total = self._config.log.every, self._config.num_steps
    if done.step == 1 or done.step % every == 0 or done.step == total:
      self._write_step()

  def evaluation(self, step: int, values: Mapping[str, float]) -> None:
    """Records held-out numbers.

    Args:
      step: after which the model was evaluated.
      values: 'val/loss' in nats per token, 'val/bpb' in bits per byte, and
        'val/zlib_bpb', what zlib needs for the same text.
    """
    self.flush()
    row = self._recorder.row(step, self._tokens, values)
    at = text.place('eval', step, self._config.num_steps)
    best = self._best[_BEST] if self._best else math.inf
    if is_best := values.get(_BEST, math.nan) < best:
      self._best = row
    self._console.line(f'{at}  {text.eval_line(values, is_best)}', style='cyan')

  def sample(self, step: int, prompt: str, continuation: str) -> None:
    """Shows what the model makes of `prompt` and writes it to samples/."""
    self.flush()
    self._recorder.sample(step, prompt + continuation)
    self._console.sample(f'sample at step {step}:', prompt, continuation)

  def paused(self, step: int, seconds: float) -> None:
    """Records that training stood still `seconds` for a save of `step`."""
    self.flush()
    self._recorder.row(step, self._tokens, {'time/checkpoint_s': seconds})

  @property
  def trying(self) -> recorder.Trying:
    """A context in which a file, by its name, may fail; it is told once."""
    return self._console.trying

  def note(self, line: str) -> None:
    """Shows one line, above the bar where there is one."""
    self._console.line(line, style='dim')

  def begins(self, row: int, notes: Sequence[str]) -> None:
    """Shows what the run is, unless it has been shown, and from which row."""
    if not self._again:
      for line in (*course_lib.overview(self._config), *notes):
        self.note(line)
    if self._config.course:
      self._console.line('', bold=course_lib.entered(self._config, row))

  def leaves(self) -> None:
    """Says that a segment of the run is done and the next one follows."""
    self.flush()
    self._console.end_bar()
    if self._config.course:
      self.note(course_lib.left(self._config, self.train_loss))

  def finish(self, *, checkpoint: str | None, data: Sequence[str] = ()) -> None:
    """Shows what the run has come to and what to type next.

    Args:
      checkpoint: where the newest one is; None: nothing was saved.
      data: what was read, a line for each phase.
    """
    self.flush()
    self._console.end_bar()
    for line in summary.closing(
      self._config,
      run_dir=str(self._run_dir),
      step=self._step,
      tokens=self._tokens,
      best=self._best,
      checkpoint=checkpoint,
      data=data,
    ):
      self._console.line(line)

  def _advance(self, loss: float) -> None:
    """Moves the progress bar."""
    rate = f'{text.short(self._window.tokens_per_second)} tok/s'
    eta, total = text.duration(self._eta_s()), self._config.num_steps
    numbers = f'loss {loss:.3f}', rate, f'eta {eta}'
    self._console.advance(self._step, total, *numbers)

  def _eta_s(self) -> float:
    """Seconds to the last step, at the pace since the last row."""
    left = segments.tokens_left(self._config, self._step)
    return left / self._window.tokens_per_second

  def _write_step(self) -> None:
    """Makes one row and one line of the steps since the last."""
    values, eta_s = self._window.combine(), self._eta_s()
    self._window = window.Window()
    if self._peak:
      rate = values['throughput/tokens_per_second']
      values['throughput/mfu'] = rate * self._flops_per_token / self._peak
    values['data/epochs'] = self._epochs(self._tokens)
    row = self._recorder.row(self._step, self._tokens, values)
    total = self._config.num_steps
    self._console.line(text.step_line(row, total=total, eta_s=eta_s))
    if seen := self._recorder.alarm(row):
      self.note(seen)
