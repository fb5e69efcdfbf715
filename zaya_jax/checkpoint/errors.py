# SPDX-License-Identifier: Apache-2.0
"""The one error of this package and what it means for the exit code."""

import errno
import os
import re
from collections.abc import Sequence
from typing import Final

from zaya_jax.config import exit_codes

USAGE: Final = exit_codes.USAGE  # Another command line would do.
UNUSABLE: Final = exit_codes.UNUSABLE  # Damaged, or cannot be written.
LATER: Final = exit_codes.STOPPED  # The same command may do later.

# What Orbax and TensorStore raise for a missing, cut or garbled file.
FAILURES = (OSError, ValueError, KeyError, TypeError, RuntimeError)

_FULL = {
  errno.ENOSPC: 'the disk is full',
  errno.EDQUOT: 'the disk quota is used up',
}
_CODE = re.compile(r"\[os_error_code='(\d+)'\]")  # In what TensorStore says.
_START, _END = 80, 200  # Characters shown of a long error.


class CheckpointError(RuntimeError):
  """A checkpoint that cannot be used; its text is one sentence for the user.

  Attributes:
    exit_code: 2 for a wrong setting, 3 for an unusable checkpoint, 75 where
      the same command may do later.
  """

  def __init__(self, message: str, exit_code: int = UNUSABLE):
    super().__init__(message)
    self.exit_code: int = exit_code


def cause(error: BaseException) -> str:
  """What went wrong, short enough for a sentence: one line, start and end."""
  text = (str(error).splitlines() or [''])[0]
  code, where = getattr(error, 'errno', None), ''
  if found := _CODE.search(text):
    code = int(found[1])
  elif filename := getattr(error, 'filename', None):
    where = f': {filename}'
  if code:
    return _FULL.get(code) or f'{os.strerror(code)}{where}'
  if len(text) > _START + _END:  # TensorStore names long paths, then the cause.
    text = f'{text[:_START]} ... {text[-_END:]}'
  return f'{type(error).__name__}: {text}'.rstrip(': .')


def damaged(directory: str, what: BaseException | str) -> CheckpointError:
  """A checkpoint that cannot be read, and why."""
  why = what if isinstance(what, str) else cause(what)
  return CheckpointError(
    f'Checkpoint {directory} is damaged ({why}); use an older one.'
  )


def nothing(source: str) -> CheckpointError:
  """A path at which there is no checkpoint."""
  return CheckpointError(
    f'{source} holds no complete checkpoint; name a run directory with '
    'checkpoints/STEP in it, or one such checkpoint.',
    USAGE,
  )


def not_finite(source: str, names: Sequence[str]) -> CheckpointError:
  """A model of which some arrays hold NaN or Inf, by their names."""
  more = f' and {len(names) - 3} more arrays' if len(names) > 3 else ''
  return CheckpointError(
    f'{source} holds NaN or Inf in {", ".join(names[:3])}{more}; name an older '
    'checkpoint, or copy the folder again.'
  )
