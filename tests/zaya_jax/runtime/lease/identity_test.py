# SPDX-License-Identifier: Apache-2.0
"""The id of a run is made once."""

import concurrent.futures

import pytest

from zaya_jax.runtime import lease


def test_id_stays_and_is_another_for_another_run(tmp_path):
  first = lease.run_id(tmp_path / 'a')
  assert len(bytes.fromhex(first)) == 16
  assert lease.run_id(tmp_path / 'a') == first
  assert lease.run_id(tmp_path / 'b') != first
  assert [path.name for path in (tmp_path / 'a').iterdir()] == ['run_id']


def test_many_that_ask_at_once_get_the_same(tmp_path):
  with concurrent.futures.ThreadPoolExecutor(16) as pool:
    assert len(set(pool.map(lease.run_id, [tmp_path / 'run'] * 64))) == 1


def test_run_of_an_old_version_keeps_the_name_of_its_fast_copies(tmp_path):
  (tmp_path / '.run').write_text('ab' * 16 + '\n')
  assert lease.run_id(tmp_path) == 'ab' * 16


@pytest.mark.parametrize('content', ['', 'x' * 32, 'ab' * 15])
def test_file_that_holds_no_id_is_refused(tmp_path, content):
  (tmp_path / 'run_id').write_text(content)
  with pytest.raises(lease.StoreError, match='holds no run id') as caught:
    lease.run_id(tmp_path)
  assert caught.value.exit_code == 3
