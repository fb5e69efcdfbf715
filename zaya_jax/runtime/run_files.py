# SPDX-License-Identifier: Apache-2.0
"""What a run writes of itself: config.flags, config.json, incidents.jsonl."""

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
  durable.replace(run_dir / 'config.flags', config.to_flagfile().encode())
  text = json.dumps(facts, indent=2) + '\n'
  durable.replace(run_dir / 'config.json', text.encode())


def incident(run_dir: str, **row: Any) -> None:
  """Appends a line to incidents.jsonl; it is on disk when this returns.

  Args:
    run_dir: the run directory.
    **row: kind, step and seen, and more for machines; None is left out.
  """
  known = {key: value for key, value in row.items() if value is not None}
  line = json.dumps({'time': time.time(), **known}) + '\n'
  path = pathlib.Path(run_dir) / 'incidents.jsonl'
  with path.open('a', encoding='utf-8') as file:
    file.write(line)
    file.flush()
    os.fsync(file.fileno())
