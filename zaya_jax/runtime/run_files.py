# SPDX-License-Identifier: Apache-2.0
"""What a run writes of itself: config.flags, config.json, incidents.jsonl."""

import contextlib
import json
import os
import pathlib
import platform
import time
from importlib import metadata
from typing import Any

import jax

from zaya_jax import config as config_lib
from zaya_jax.runtime import durable

_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'grain')


def write(
  config: config_lib.Config, *, device: jax.Device, count: int, **more: Any
) -> None:
  """Writes config.flags, which repeats the run, and config.json, for people.

  Args:
    config: of the run.
    device: one of its devices.
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


def _keep(path: pathlib.Path, text: str) -> None:
  """Writes a file, unless it says so already: the disk may be full."""
  content = text.encode()
  if not path.is_file() or path.read_bytes() != content:
    durable.replace(path, content)
