# SPDX-License-Identifier: Apache-2.0
"""What a run keeps of its steps: rows, TensorBoard's events, samples.

None of it is worth a run: what cannot be written is lost, and said once, and
once when it is written again.
"""

import contextlib
import math
import os
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.config.recipe import segments
from zaya_jax.metrics import experts, journal, routers, trackers
from zaya_jax.runtime import clock, durable, run_files

_REOPEN_S = 10.0

# A context in which a file, by its name, may fail.
Trying = Callable[[str], contextlib.AbstractContextManager[None]]


class Recorder:
  """The files of a run; use it in a `with` block.

  Attributes:
    history: the rows of metrics.jsonl that were kept, oldest first.
  """

  def __init__(
    self,
    config: config_lib.Config,
    run_dir: pathlib.Path,
    *,
    last_step: int,
    first: bool,
    trying: Trying,
    followers: Mapping[str, trackers.Tracker] = trackers.NONE,
  ):
    """Opens the files.

    Args:
      config: of the run.
      run_dir: where they lie.
      last_step: steps done before; rows of later ones are dropped.
      first: whether this process records; of the others nothing is kept.
      trying: what fails inside is told, and the run goes on.
      followers: by the flags that name them.
    """
    self._followers = followers
    self._run_dir, self._trying, self._first = run_dir, trying, first
    self._routers = routers.Watch(config)
    name = segments.current(config).phase
    self._phase = {'phase': name} if name else {}
    self._open = contextlib.ExitStack()
    nowhere = pathlib.Path(os.devnull)
    self._journal = journal.Journal(
      run_dir / 'metrics.jsonl' if first else nowhere, last_step=last_step
    )
    self._open.callback(self._journal.close)
    self.history = self._journal.history
    self._experts = experts.ExpertLog(
      run_dir / 'experts.jsonl' if first else nowhere,
      last_step=last_step,
      num_steps=config.num_steps,
      every=config.log.every,
    )
    self._open.callback(self._experts.close)
    self._events: Any = None
    self._reopen_at = math.inf  # When TensorBoard's events get another file.
    if config.log.tensorboard and first:
      self._open_tensorboard(last_step)

  def __enter__(self) -> 'Recorder':
    return self

  def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
    self._open.close()

  def row(
    self, step: int, tokens: int, values: Mapping[str, float]
  ) -> dict[str, Any]:
    """Writes a row to metrics.jsonl and TensorBoard; returns it."""
    row = {'step': step, 'tokens': tokens, **self._phase, **values}
    row |= clock.stamps()
    with self._trying('metrics.jsonl'):
      self._journal.write(row)
      if time.monotonic() > self._reopen_at:  # There is room again.
        self._open_tensorboard(step - 1)
    self._event(lambda events: events.scalars(values, step))
    self._follow(lambda one: one.scalars({'tokens': tokens, **values}, step))
    return row

  def routes(self, step: int, measured: Mapping[str, Any]) -> None:
    """Takes what a step has measured of its experts."""
    with self._trying('experts.jsonl'):
      self._experts.add(step, measured)

  def alarm(self, row: Mapping[str, Any]) -> str | None:
    """What a row says of the routers, if that is new; then it is an incident.

    Args:
      row: of `row`.
    """
    seen = self._routers.look(row)
    if seen and self._first:
      about = {'kind': 'router', 'step': row['step'], 'source': 'trainer'}
      with self._trying('incidents.jsonl'):
        run_files.incident(str(self._run_dir), seen=seen, **about)
    return seen

  def sample(self, step: int, words: str) -> None:
    """Writes a sample to samples/ and TensorBoard."""
    path = self._run_dir / 'samples' / f'step_{step:06d}.txt'
    with self._trying('samples/'):
      path.parent.mkdir(exist_ok=True)
      durable.replace(path, words.encode('utf-8', 'replace'))
    self._event(
      lambda events: events.text('sample', f'```\n{words}\n```', step)
    )
    self._follow(lambda one: one.text('sample', words, step))

  def _open_tensorboard(self, last_step: int) -> None:
    # Here: nobody who turns it off waits for it.
    from zaya_jax.metrics import tensorboard

    # Of another second its file has another name.
    self._reopen_at = time.monotonic() + _REOPEN_S
    with self._trying('tensorboard/'):
      events = tensorboard.Events(
        self._run_dir / 'tensorboard', last_step=last_step
      )
      self._events, self._reopen_at = events, math.inf
      self._open.callback(self._close, events)

  def _close(self, events: Any) -> None:
    """Closes a file of events; what it could not write is lost."""
    with contextlib.suppress(OSError):
      events.close()

  def _follow(self, hand: Callable[[trackers.Tracker], None]) -> None:
    """Hands something to all that follow the run."""
    for flag, tracker in self._followers.items():
      with self._trying(flag):
        hand(tracker)

  def _event(self, write: Callable[[Any], None]) -> None:
    """Writes to TensorBoard, where its file is whole."""
    # Behind an event that is not whole nothing can be read.
    events, self._events = self._events, None
    if events:
      self._reopen_at = time.monotonic() + _REOPEN_S
      with self._trying('tensorboard/'):
        write(events)
        self._events, self._reopen_at = events, math.inf
