# SPDX-License-Identifier: Apache-2.0
"""What a lowered step depends on, and the name that it is kept under.

Rather too much than too little: what is missing here would run another step
than the one that was asked for.
"""

import dataclasses
import hashlib
import json
import pathlib
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from typing import Any

import jax

import ops
from ops import dispatch, native
from zaya_jax import config as config_lib
from zaya_jax.config.recipe import segments
from zaya_jax.runtime import clock, processes

FORMAT = 1  # Of the files.
# Settings that no step reads.
OUTSIDE = frozenset(
  'mode run_dir source output seed recipe resume restore prompt drill serve '
  'distributed checkpoint eval generate export plan bench aegis log report '
  'ledger course given'.split()
)
_OUTSIDE_DATA = frozenset(('dir', 'input'))
_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'numpy', 'ml_dtypes')
# Of jax: how it compiles, keeps and logs, which lowering does not read.
_NOT_LOWERING = (
  'jax_compilation_cache',
  'jax_persistent_cache',
  'jax_log',
  'jax_dump',
)
_SLACK_S = 2.0  # Clocks of file systems, and what was imported before ours.


def digest(config: config_lib.Config, arguments: Any) -> str:
  """The name of the step of a run on the mesh that is set.

  Args:
    config: of the run, in which nothing is left to decide.
    arguments: of the step, arrays in any tree.

  Returns:
    64 hexadecimal digits; '' if the sources have changed since this process
    began, so that nobody knows what it runs.
  """
  sources = _sources(_files())
  if not sources:
    return ''
  text = json.dumps(_facts(config, arguments) | {'sources': sources})
  return hashlib.sha256(text.encode()).hexdigest()


def _facts(config, arguments) -> dict[str, Any]:
  leaves, tree = jax.tree.flatten(arguments)
  mesh = jax.sharding.get_mesh()
  named = {
    name: repr(value)
    for name, value in sorted(jax.config.values.items())
    if not name.startswith(_NOT_LOWERING)
  }
  return {
    'format': FORMAT,
    'versions': {name: metadata.version(name) for name in _PACKAGES},
    'python': sys.version,
    'settings': settings(config),
    'arguments': [f'{jax.typeof(a)} {a.sharding}' for a in leaves],
    'tree': str(tree),
    'mesh': [str(mesh), [device.id for device in mesh.devices.flat]],
    'devices': sorted({_describe(device) for device in mesh.devices.flat}),
    'processes': processes.processes(),
    'jax': named,
    'engines': dispatch.named(),
    'times': [dataclasses.astuple(row) for row in dispatch.rows()],
    'native': native.fingerprint(),
  }


def settings(config: config_lib.Config) -> dict[str, str]:
  """Those that a step may read, by the names of sections and fields."""
  found = {
    field.name: repr(getattr(config, field.name))
    for field in dataclasses.fields(config)
    if field.name not in OUTSIDE
  }
  data = {
    name: value
    for name, value in vars(config.data).items()
    if name not in _OUTSIDE_DATA
  }
  segment = segments.current(config)
  return {**found, 'data': repr(data), 'segment': repr(segment)}


def _describe(device) -> str:
  known = ('device_kind', 'compute_capability', 'core_count')
  return ' '.join(
    [
      *(str(getattr(device, name, '')) for name in known),
      device.client.platform_version,
    ]
  )


def _files() -> list[pathlib.Path]:
  """The sources of what a step is made of."""
  ours = pathlib.Path(config_lib.__file__).parents[1]
  roots = [ours, *map(pathlib.Path, ops.__path__)]
  return sorted(path for root in roots for path in root.rglob('*.py'))


def _sources(files: Sequence[pathlib.Path]) -> str:
  """Of all files; '' if one is younger than this process, or there is none."""
  found = hashlib.sha256()
  for path in files:
    if path.stat().st_mtime > clock.BEGAN - _SLACK_S:
      return ''
    found.update(_framed((str(path).encode(), path.read_bytes())))
  return found.hexdigest() if files else ''


def _framed(parts: Iterable[bytes]) -> bytes:
  """One after another, each behind its length."""
  return b''.join(len(part).to_bytes(8, 'big') + part for part in parts)
