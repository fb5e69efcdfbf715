# SPDX-License-Identifier: Apache-2.0
"""The order in which a program forces files to disk, and disks that fill."""

import contextlib
import os
import resource
from collections.abc import Iterator
from typing import Any

Event = tuple[str, str]  # 'fsync' of a path, or 'name': a path got its name.


def record(monkeypatch: Any) -> list[Event]:
  """What is synced and named from now on, by absolute path."""
  events: list[Event] = []
  fsync = os.fsync

  def synced(file):
    number = file if isinstance(file, int) else file.fileno()
    events.append(('fsync', os.readlink(f'/proc/self/fd/{number}')))
    fsync(file)

  monkeypatch.setattr(os, 'fsync', synced)
  monkeypatch.setattr(os, 'rename', _told(events, os.rename))
  monkeypatch.setattr(os, 'replace', _told(events, os.replace))
  return events


def in_order(events: list[Event], *wanted: Event) -> bool:
  """Whether events are there, each after the one before it."""
  rest = iter(events)
  return all(event in rest for event in wanted)


@contextlib.contextmanager
def full(size: int) -> Iterator[None]:
  """Inside, files of this process end at `size` bytes: of a line, a part fits.

  The system says 'File too large' where a full disk is 'No space left'.
  """
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _told(events, rename):
  def run(old, new):
    rename(old, new)
    events.append(('name', os.path.abspath(new)))

  return run
