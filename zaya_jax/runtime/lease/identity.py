# SPDX-License-Identifier: Apache-2.0
"""The id of a run: 128 random bits, made once, kept in RUN_DIR/run_id."""

import contextlib
import os
import pathlib
import re
import secrets
import socket

from zaya_jax.config import exit_codes
from zaya_jax.runtime import durable
from zaya_jax.runtime.lease import errors

_FORM = re.compile('[0-9a-f]{32}')


def run_id(run_dir: str | os.PathLike[str]) -> str:
  """The id of a run; a new one if it has none yet.

  Several processes may ask at the same time: all get the same.

  Raises:
    StoreError: it cannot be read or made.
  """
  path = pathlib.Path(run_dir, 'run_id')
  try:
    if not path.exists():
      path.parent.mkdir(parents=True, exist_ok=True)
      _make(path)
    text = path.read_text(errors='replace').strip()
  except OSError as error:
    raise errors.StoreError(
      f'{path} cannot be read or written: {error.strerror}.', exit_codes.USAGE
    ) from error
  if not _FORM.fullmatch(text):
    raise errors.StoreError(
      f'{path} holds no run id, which is 32 hexadecimal digits; write back the '
      'one that the seals of its checkpoints name.',
      exit_codes.UNUSABLE,
    )
  return text


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
  with contextlib.suppress(OSError):
    text = (run_dir / '.run').read_text(errors='replace').strip()
    return text if _FORM.fullmatch(text) else None
  return None
