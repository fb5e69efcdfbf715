# SPDX-License-Identifier: Apache-2.0
"""The key of --checkpoint.seal_key_file: who has it makes seals, and only who.

Without one a seal tells what was damaged, but not what somebody has changed. A
file may hold several keys, one a line as ID:KEY: the first signs, and all are
accepted, so that a key can be changed while old seals still hold.
"""

import contextlib
import hmac
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from zaya_jax.checkpoint import errors

# Names the key file of ranks, where nobody who writes into the run directory,
# with its flagfiles, can take it away.
VARIABLE = 'ZAYA_SEAL_KEY_FILE'

_SHORTEST = 16  # Bytes.
_LINE = re.compile(r'([A-Za-z0-9_.\-]{1,64}):(\S+)')


class Ring(NamedTuple):
  """The keys of one file.

  Attributes:
    where: the flag or variable that names the file, and its path.
    keys: by id, that which signs first. What one line says is a key as it is
      and, where that is hexadecimal, as the bytes; the first of them signs.
  """

  where: str
  keys: dict[str, list[bytes]]


_trusted: list[Ring] = []


@contextlib.contextmanager
def trusting(key_file: str) -> Iterator[None]:
  """Within, seals are made with the first key, and others are refused.

  Args:
    key_file: any file of at least 16 bytes, or lines ID:KEY with keys of so
      many; '': seals need no key. A file that ZAYA_SEAL_KEY_FILE names comes
      before it.

  Raises:
    CheckpointError: with exit code 2 if it cannot be read or is too short.
  """
  where = f'--checkpoint.seal_key_file={key_file}'
  if told := os.environ.get(VARIABLE):
    key_file, where = told, f'{VARIABLE}={told}'
  if not key_file:
    yield
    return
  _trusted.append(Ring(where, _read(key_file, where)))
  try:
    yield
  finally:
    _trusted.pop()


def where() -> str:
  """The flag or variable that names the keys, with its file; '': no key."""
  return _trusted[-1].where if _trusted else ''


def newest() -> str | None:
  """The id of the key that signs, '' if it has none; None: there is no key."""
  return next(iter(_trusted[-1].keys)) if _trusted else None


def sign(text: bytes) -> dict[str, str]:
  """What a seal says of its signature: 'hmac', and 'key' if that has an id.

  Nobody without the key can make it; {}: there is no key.
  """
  if not _trusted:
    return {}
  name, keys = next(iter(_trusted[-1].keys.items()))
  signed = {'hmac': _hmac(keys[0], text)}
  return {**signed, 'key': name} if name else signed


def accepts(text: bytes, signature: object, name: object = '') -> bool:
  """Whether a text was signed with a key here; without one, all are accepted.

  Args:
    text: that was signed.
    signature: the HMAC.
    name: the id of the key; '': it has none, and each is tried.
  """
  if not _trusted:
    return True
  given, keys = str(signature).encode(), _trusted[-1].keys
  return any(
    hmac.compare_digest(given, _hmac(key, text).encode())
    for own, some in keys.items()
    if name in ('', own)
    for key in some
  )


def _hmac(key: bytes, text: bytes) -> str:
  return hmac.new(key, text, 'sha256').hexdigest()


def _read(key_file: str, where: str) -> dict[str, list[bytes]]:
  try:
    with open(key_file, 'rb') as file:
      content = file.read().strip()
  except OSError as error:
    raise _bad(where, f'cannot be read ({error.strerror})') from error
  if len(content) < _SHORTEST:
    raise _bad(where, f'has fewer than {_SHORTEST} bytes')
  lines = content.decode(errors='replace').splitlines()
  found = [_LINE.fullmatch(line.strip()) for line in lines]
  if not all(found):
    return {'': [content]}
  keys: dict[str, list[bytes]] = {}
  for name, text in (match.groups() for match in found if match):
    if name in keys:
      raise _bad(where, f'has two keys of the id {name}')
    if len(text) < _SHORTEST:
      raise _bad(where, f'has fewer than {_SHORTEST} bytes in its key {name}')
    keys[name] = [text.encode()]
    with contextlib.suppress(ValueError):
      if len(key := bytes.fromhex(text)) >= _SHORTEST:
        keys[name].append(key)
  # A file of one line may have been a key as a whole.
  return {**keys, '': [content]} if len(keys) == 1 else keys


def _bad(where: str, why: str) -> errors.CheckpointError:
  return errors.CheckpointError(
    f'{where} {why}; make one with head -c 32 /dev/urandom, or lines ID:KEY '
    'with openssl rand -hex 32.',
    errors.USAGE,
  )
