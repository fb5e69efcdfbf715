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


def test_each_generation_tells_from_which_step_it_began(tmp_path):
  for number, start in ((1, 0), (2, 40), (3, None)):
    fence.raise_to(str(tmp_path), number, start)
  assert fence.began(str(tmp_path)) == [(1, 0), (2, 40), (3, None)]
  assert fence.newest(str(tmp_path)) == 3


@pytest.mark.parametrize(
  'content, began',
  [
    (b'7', [(7, None)]),  # As older supervisors wrote it.
    (b'7\n{"number": 8, "start_step": 3}\n', [(7, None), (8, 3)]),
    (b'', []),
    (b'\xff\n{}\n[]\n{"number": 2}\n"x"\nnull\n', []),
    (b'{"number": 2, "start_step": 1}\n{"num', [(2, 1)]),
  ],
)
def test_any_file_of_generations_can_be_read(tmp_path, content, began):
  path = tmp_path / 'aegis' / 'generation'
  path.parent.mkdir()
  path.write_bytes(content)
  assert fence.began(str(tmp_path)) == began
  newest = fence.newest(str(tmp_path))
  assert newest == max((number for number, _ in began), default=0)
  fence.raise_to(str(tmp_path), newest + 1, 5)
  assert fence.began(str(tmp_path)) == [*began, (newest + 1, 5)]
