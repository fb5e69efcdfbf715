# SPDX-License-Identifier: Apache-2.0
"""What went wrong, in words for a sentence."""

import errno

import pytest

from zaya_jax.checkpoint import errors

# As TensorStore says it.
OCDBT = (
  'RESOURCE_EXHAUSTED: Error writing "params.w/0" in OCDBT database at local '
  'file "/runs/a/": Failed to write 13783040 bytes to file 15: %s '
  "[os_error_code='%d']"
)


@pytest.mark.parametrize(
  'error, words',
  [
    (OSError(errno.ENOSPC, 'No space left on device'), 'the disk is full'),
    (OSError(errno.EDQUOT, 'Disk quota exceeded'), 'the disk quota is used up'),
    (ValueError(OCDBT % ('No space left on device', 28)), 'the disk is full'),
    (
      ValueError(OCDBT % ('Disk quota exceeded', 122)),
      'the disk quota is used up',
    ),
    (
      OSError(errno.EROFS, 'Read-only file system', '/runs/a/SEAL.json'),
      'Read-only file system: /runs/a/SEAL.json',
    ),
    (OSError(errno.EIO, 'Input/output error'), 'Input/output error'),
    (ValueError(OCDBT % ('File too large', 27)), 'File too large'),
    (
      ValueError("Failed: %s [x='{}'] [os_error_code='27']" % ('y' * 900)),
      'File too large',
    ),
    (KeyError('params'), "KeyError: 'params'"),
    (ValueError('first\nsecond'), 'ValueError: first'),
    (EOFError(), 'EOFError'),
  ],
)
def test_cause_is_said_without_what_only_a_program_reads(error, words):
  assert errors.cause(error) == words


def test_long_cause_keeps_its_start_and_its_end():
  words = errors.cause(ValueError('start ' + 'x' * 900 + ' end'))
  assert words.startswith('ValueError: start x')
  assert words.endswith('x end') and len(words) < 310
