# SPDX-License-Identifier: Apache-2.0
"""Copies of parts in the folder of one process."""

from zaya_jax.checkpoint.writing import copies


def test_step_that_is_done_again_replaces_its_copy(tmp_path):
  for content in (b'of a past that is undone', b'new'):
    parts = {0: lambda file, content=content: file.write(content)}
    copies.write(str(tmp_path), {'step': 8}, parts)
  assert (tmp_path / '8.0' / copies.FILE).read_bytes() == b'new'
