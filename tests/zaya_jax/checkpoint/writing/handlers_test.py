# SPDX-License-Identifier: Apache-2.0
"""How a process learns that its part of a save has failed."""

from zaya_jax.checkpoint.writing import handlers


def test_first_failure_says_why_until_the_next_save(tmp_path):
  parts = handlers.Parts()
  parts.fail(OSError(28, 'No space left on device'))
  parts.fail(TimeoutError('waited for the others'))  # What comes of the first.
  assert parts.finish(str(tmp_path)) == 'the disk is full'
  parts.reset()
  assert parts.finish(str(tmp_path)) == {}
