# SPDX-License-Identifier: Apache-2.0
"""What a run writes of itself: config.flags, config.json, incidents.jsonl.

And run_id, 128 random bits that no other run has; parent_id names the run whose
parameters it began with.
"""

import contextlib
import json
import os
import pathlib
import platform
import re
import secrets
import socket
import time
from importlib import metadata
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.config import exit_codes
from zaya_jax.runtime import durable

_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'grain')
PROFILE = 'profile'  # The folder of traces, one for each --log.profile.
SUMMARY = 'kernels.json'  # In it.
_TRACED = re.compile(r'steps_(\d+)_to_(\d+)')
_FORM = re.compile('[0-9a-f]{32}')


class IdentityError(RuntimeError):
  """A run whose id is not known; one sentence.

  Attributes:
    exit_code: 2 where it cannot be read or written, 3 where it is damaged.
  """

  def __init__(self, message: str, exit_code: int):
    super().__init__(message)
    self.exit_code = exit_code


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


def run_id(run_dir: str | os.PathLike[str]) -> str:
  """The id of a run; a new one if it has none yet.

  Several processes may ask at the same time: all get the same.

  Raises:
    IdentityError: it cannot be read or made.
  """
  path = pathlib.Path(run_dir, 'run_id')
  try:
    if not path.exists():
      path.parent.mkdir(parents=True, exist_ok=True)
      _make(path)
    text = path.read_text(errors='replace').strip()
  except OSError as error:
    raise IdentityError(
      f'{path} cannot be read or written: {error.strerror}.', exit_codes.USAGE
    ) from error
  if not _FORM.fullmatch(text):
    raise IdentityError(
      f'{path} holds no run id, which is 32 hexadecimal digits; write back the '
      'one that the seals of its checkpoints name.',
      exit_codes.UNUSABLE,
    )
  return text


def set_parent(run_dir: str, parent: str) -> None:
  """Remembers the id of the run whose parameters this one began with."""
  durable.replace(pathlib.Path(run_dir, 'parent_id'), f'{parent}\n'.encode())


def lineage(run_dir: str) -> dict[str, str]:
  """The id of a run as 'run' and, if it began with another's, as 'parent'."""
  known = {'run': run_id(run_dir)}
  if parent := _read(pathlib.Path(run_dir, 'parent_id')):
    known['parent'] = parent
  return known


def _make(path: pathlib.Path) -> None:
  """Writes a new id, unless somebody else was faster."""
  own = path.with_name(
    f'run_id.{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}'
  )
  durable.replace(
    own, f'{_old(path.parent) or secrets.token_hex(16)}\n'.encode()
  )
  try:
    with contextlib.suppress(FileExistsError):
      os.link(own, path)
  finally:
    own.unlink()
  durable.sync(path.parent)


def _old(run_dir: pathlib.Path) -> str | None:
  """The id of a run of an old version, by which its fast copies are named."""
  return _read(run_dir / '.run')


def _read(path: pathlib.Path) -> str | None:
  """The id in a file; None: there is none."""
  with contextlib.suppress(OSError):
    text = path.read_text(errors='replace').strip()
    return text if _FORM.fullmatch(text) else None
  return None


def _keep(path: pathlib.Path, text: str) -> None:
  """Writes a file, unless it says so already: the disk may be full."""
  content = text.encode()
  if not path.is_file() or path.read_bytes() != content:
    durable.replace(path, content)


def profile(run_dir: str, steps: range) -> pathlib.Path:
  """Where the trace of some steps lies."""
  name = f'steps_{steps[0]:06d}_to_{steps[-1]:06d}'
  return pathlib.Path(run_dir) / PROFILE / name


def profiles(run_dir: str) -> list[tuple[pathlib.Path, range]]:
  """The traces of a run, by step, each with the steps that it is of."""
  found = (pathlib.Path(run_dir) / PROFILE).glob('steps_*')
  named = ((path, _TRACED.fullmatch(path.name)) for path in found)
  return sorted(
    (
      (path, range(int(match[1]), int(match[2]) + 1))
      for path, match in named
      if match
    ),
    key=lambda one: one[1][0],
  )
