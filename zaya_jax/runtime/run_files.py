# SPDX-License-Identifier: Apache-2.0
"""What a run writes of itself: config.flags, config.json, incidents.jsonl.

And run_id, which no other run has; parent_id names the run whose parameters it
began with.
"""

import contextlib
import json
import os
import pathlib
import platform
import re
import secrets
import time
from importlib import metadata
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.runtime import durable

_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'grain')


def write(
  config: config_lib.Config, *, device: Any, count: int, **more: Any
) -> None:
  """Writes config.flags, which repeats the run, and config.json, for people.

  Args:
    config: of the run.
    device: one of its devices, of jax.
    count: how many there are.
    **more: of config.json.
  """
  run_dir = pathlib.Path(config.run_dir)
  facts = {
    'config': config.as_dict(),
    'devices': {
      'platform': device.platform,
      'kind': device.device_kind,
      'count': count,
    },
    'versions': {
      'python': platform.python_version(),
      **{name: metadata.version(name) for name in _PACKAGES},
    },
    **more,
  }
  _keep(run_dir / 'config.flags', config.to_flagfile())
  _keep(run_dir / 'config.json', json.dumps(facts, indent=2) + '\n')


def incident(run_dir: str, **row: Any) -> None:
  """Appends a line to incidents.jsonl; it is on disk when this returns.

  Args:
    run_dir: the run directory.
    **row: kind, step and seen, and more for machines; None is left out.

  Raises:
    OSError: if it cannot be written; the file is as before.
  """
  known = {key: value for key, value in row.items() if value is not None}
  line = json.dumps({'time': time.time(), **known}) + '\n'
  file = durable.Lines(os.path.join(run_dir, 'incidents.jsonl'))
  with contextlib.closing(file):
    file.write(line.encode())
    file.sync()


def run_id(run_dir: str) -> str:
  """The id of a run, 32 hexadecimal digits; made if there is none.

  Raises:
    UsageError: if the file holds something else.
    OSError: if it cannot be read or made.
  """
  path = pathlib.Path(run_dir, 'run_id')
  if not path.exists():
    durable.replace(path, f'{secrets.token_hex(16)}\n'.encode())
  if found := _id(path):
    return found
  raise config_lib.UsageError(
    f'{path} holds no run id, which is 32 hexadecimal digits; write back the '
    'one that the seals of its checkpoints name ("run").'
  )


def set_parent(run_dir: str, parent: str) -> None:
  """Remembers the id of the run whose parameters this one began with."""
  durable.replace(pathlib.Path(run_dir, 'parent_id'), f'{parent}\n'.encode())


def lineage(run_dir: str) -> dict[str, str]:
  """The id of a run as 'run' and, if it began with another's, as 'parent'."""
  known = {'run': run_id(run_dir)}
  if parent := _id(pathlib.Path(run_dir, 'parent_id')):
    known['parent'] = parent
  return known


def _id(path: pathlib.Path) -> str | None:
  """What a file with an id holds; None: there is none in it."""
  with contextlib.suppress(FileNotFoundError):
    text = path.read_text(errors='replace').strip()
    return text if re.fullmatch('[0-9a-f]{32}', text) else None
  return None


def _keep(path: pathlib.Path, text: str) -> None:
  """Writes a file, unless it says so already: the disk may be full."""
  content = text.encode()
  if not path.is_file() or path.read_bytes() != content:
    durable.replace(path, content)
