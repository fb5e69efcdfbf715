# SPDX-License-Identifier: Apache-2.0
"""What a run writes of itself repeats it and tells what it ran on."""

import concurrent.futures
import json

import jax
import pytest

from tests.support import disk
from zaya_jax import config as config_lib
from zaya_jax.runtime import run_files


def test_settings_repeat_the_run_and_facts_are_json(tmp_path):
  config = config_lib.Config(run_dir=str(tmp_path), num_steps=7)
  run_files.write(config, device=jax.devices()[0], count=8)
  path = tmp_path / 'config.flags'
  assert config_lib.Config.from_flagfile(str(path)) == config
  facts = json.loads((tmp_path / 'config.json').read_text())
  assert facts['config']['num_steps'] == 7
  assert facts['devices'] == {'platform': 'cpu', 'kind': 'cpu', 'count': 8}
  assert facts['versions'].keys() >= {'python', 'jax', 'orbax-checkpoint'}


def test_settings_that_are_there_need_no_room(tmp_path, monkeypatch):
  config = config_lib.Config(run_dir=str(tmp_path), num_steps=7)
  device = jax.devices()[0]
  run_files.write(config, device=device, count=8)
  before = {path: path.stat().st_ino for path in tmp_path.iterdir()}
  with disk.full(0):
    run_files.write(config, device=device, count=8)
    with pytest.raises(OSError, match='too large'):
      run_files.write(config, device=device, count=4)
  assert before == {path: path.stat().st_ino for path in tmp_path.iterdir()}


def test_incident_on_a_full_disk_is_whole_or_absent(tmp_path):
  tell = lambda step: run_files.incident(str(tmp_path), kind='spike', step=step)
  tell(3)
  with disk.full(70), pytest.raises(OSError, match='too large'):
    tell(4)
  tell(5)
  lines = (tmp_path / 'incidents.jsonl').read_text().splitlines()
  assert [json.loads(line)['step'] for line in lines] == [3, 5]


def test_incidents_are_appended_and_on_disk(tmp_path, monkeypatch):
  events = disk.record(monkeypatch)
  for step in (3, 4):
    run_files.incident(
      str(tmp_path), kind='spike', step=step, seen='loss', rank=None
    )
  path = tmp_path / 'incidents.jsonl'
  assert events == [('fsync', str(path))] * 2
  rows = [json.loads(line) for line in path.read_text().splitlines()]
  assert [row['step'] for row in rows] == [3, 4]
  assert all(row.keys() == {'time', 'kind', 'step', 'seen'} for row in rows)


def test_id_stays_and_is_another_for_another_run(tmp_path):
  first = run_files.run_id(tmp_path / 'a')
  assert len(bytes.fromhex(first)) == 16
  assert run_files.run_id(tmp_path / 'a') == first
  assert run_files.run_id(tmp_path / 'b') != first
  assert [path.name for path in (tmp_path / 'a').iterdir()] == ['run_id']


def test_many_that_ask_at_once_get_the_same(tmp_path):
  with concurrent.futures.ThreadPoolExecutor(16) as pool:
    assert len(set(pool.map(run_files.run_id, [tmp_path / 'run'] * 64))) == 1


def test_run_of_an_old_version_keeps_the_name_of_its_fast_copies(tmp_path):
  (tmp_path / '.run').write_text('ab' * 16 + '\n')
  assert run_files.run_id(tmp_path) == 'ab' * 16


def test_run_remembers_whose_parameters_it_began_with(tmp_path):
  one = run_files.run_id(tmp_path / 'a')
  assert run_files.lineage(str(tmp_path / 'a')) == {'run': one}
  (tmp_path / 'b').mkdir()
  run_files.set_parent(str(tmp_path / 'b'), one)
  assert run_files.lineage(str(tmp_path / 'b'))['parent'] == one


@pytest.mark.parametrize('content', ['', 'x' * 32, 'AB' * 16, 'ab' * 15])
def test_file_that_holds_no_id_is_refused(tmp_path, content):
  (tmp_path / 'run_id').write_text(content)
  with pytest.raises(
    run_files.IdentityError, match='holds no run id'
  ) as caught:
    run_files.run_id(tmp_path)
  assert caught.value.exit_code == 3
