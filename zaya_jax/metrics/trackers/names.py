# SPDX-License-Identifier: Apache-2.0
"""What trackers call a run, at each start the same, and what they are shown."""

import json
import pathlib
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.runtime import durable

_FILE = 'trackers.json'


def read(run_dir: pathlib.Path, tracker: str) -> str | None:
  """The name of the run at a tracker; None: it has none yet."""
  return _all(run_dir).get(tracker)


def keep(run_dir: pathlib.Path, tracker: str, name: str) -> None:
  """Writes the name down, for later starts of the run."""
  found = _all(run_dir) | {tracker: name}
  durable.replace(run_dir / _FILE, json.dumps(found).encode())


def shown(config: config_lib.Config) -> dict[str, Any]:
  """The settings, without those of the cluster: an address may be a secret."""
  found = config.as_dict()
  del found['aegis']
  return found


def _all(run_dir: pathlib.Path) -> dict[str, str]:
  path = run_dir / _FILE
  return json.loads(path.read_text()) if path.exists() else {}
