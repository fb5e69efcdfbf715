# SPDX-License-Identifier: Apache-2.0
"""TensorBoard's events of a run.

Written by the calling thread. The one that tensorboardX would start dies on a
full disk without a word, and then blocks whoever hands it more events.
"""

import math
import pathlib
import time
from collections.abc import Mapping

from tensorboardX import event_file_writer, summary
from tensorboardX.proto import event_pb2

_FLUSH_S = 10.0  # A flush waits for the disk.


class Events:
  """Appends to a new event file in a folder."""

  def __init__(self, folder: pathlib.Path, *, last_step: int):
    """Opens the file.

    Args:
      folder: made if it does not exist.
      last_step: TensorBoard forgets what older files say of later steps.
    """
    folder.mkdir(parents=True, exist_ok=True)
    self._file = event_file_writer.EventsWriter(str(folder / 'events'))
    self._flushed_at = time.monotonic()
    if last_step:
      start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
      self._write(event_pb2.Event(session_log=start), last_step + 1)

  def scalars(self, values: Mapping[str, float], step: int) -> None:
    """Adds a point to each curve; NaN and Inf are none."""
    for name, value in values.items():
      if math.isfinite(value):
        event = event_pb2.Event(summary=summary.scalar(name, value))
        self._write(event, step)

  def text(self, name: str, words: str, step: int) -> None:
    """Adds a text."""
    self._write(event_pb2.Event(summary=summary.text(name, words)), step)

  def close(self) -> None:
    """Writes what is left."""
    self._file.close()

  def _write(self, event: event_pb2.Event, step: int) -> None:
    event.wall_time, event.step = time.time(), step
    self._file.write_event(event)
    if time.monotonic() - self._flushed_at >= _FLUSH_S:
      self._file.flush()
      self._flushed_at = time.monotonic()
