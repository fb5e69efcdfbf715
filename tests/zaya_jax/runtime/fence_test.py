# SPDX-License-Identifier: Apache-2.0
"""The newest generation is on disk before anything is done in its name."""

import pytest

from tests.support import disk
from zaya_jax.runtime import fence


def test_generations_are_counted_on_disk(tmp_path, monkeypatch):
  assert fence.newest(str(tmp_path)) == 0
  events = disk.record(monkeypatch)
  fence.raise_to(str(tmp_path), 7)
  assert fence.newest(str(tmp_path)) == 7
  folder = tmp_path / 'aegis'
  assert [path.name for path in folder.iterdir()] == ['generation']
  assert disk.in_order(
    events,
    ('fsync', f'{folder}/generation.partial'),
    ('name', f'{folder}/generation'),
    ('fsync', str(folder)),
  )


@pytest.mark.parametrize('own, passes', [(6, False), (7, True), (8, True)])
def test_only_older_generations_are_fenced_off(tmp_path, own, passes):
  fence.check(str(tmp_path), own)  # There is none yet.
  fence.raise_to(str(tmp_path), 7)
  if passes:
    fence.check(str(tmp_path), own)
    return
  with pytest.raises(fence.FencedError, match='generation 6 of') as caught:
    fence.check(str(tmp_path), own)
  assert caught.value.exit_code == 75
