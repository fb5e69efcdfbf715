# SPDX-License-Identifier: Apache-2.0
"""The order in which a program forces files to disk and renames them."""

import os
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


def _told(events, rename):
  def run(old, new):
    rename(old, new)
    events.append(('name', os.path.abspath(new)))

  return run
