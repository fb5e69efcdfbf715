# SPDX-License-Identifier: Apache-2.0
"""The key of --checkpoint.seal_key_file: who has it makes seals, and only who.

Without one a seal tells what was damaged, but not what somebody has changed.
"""

import contextlib
import hmac
from collections.abc import Iterator

from zaya_jax.checkpoint import errors

_SHORTEST = 16  # Bytes.
_trusted: list[bytes] = []


@contextlib.contextmanager
def trusting(key_file: str) -> Iterator[None]:
  """Within, seals are made with this key, and others are refused.

  Args:
    key_file: any file of at least 16 bytes; '': seals need no key.

  Raises:
    CheckpointError: with exit code 2 if it cannot be read or is too short.
  """
  if not key_file:
    yield
    return
  try:
    with open(key_file, 'rb') as file:
      key = file.read().strip()
  except OSError as error:
    raise _bad(key_file, f'cannot be read ({error.strerror})') from error
  if len(key) < _SHORTEST:
    raise _bad(key_file, f'has fewer than {_SHORTEST} bytes')
  _trusted.append(key)
  try:
    yield
  finally:
    _trusted.pop()


def sign(text: bytes) -> str | None:
  """The HMAC that nobody without the key can make; None: there is no key."""
  if not _trusted:
    return None
  return hmac.new(_trusted[-1], text, 'sha256').hexdigest()


def accepts(text: bytes, signature: object) -> bool:
  """Whether a text was signed with the key; without one, all are accepted."""
  own = sign(text)
  return own is None or hmac.compare_digest(
    str(signature).encode(), own.encode()
  )


def _bad(key_file: str, why: str) -> errors.CheckpointError:
  return errors.CheckpointError(
    f'--checkpoint.seal_key_file={key_file} {why}; make one with head -c 32 '
    '/dev/urandom.',
    errors.USAGE,
  )
