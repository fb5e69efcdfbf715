# SPDX-License-Identifier: Apache-2.0
"""Which machine a plan and a run take."""

import json

import pytest

from tests.support import curves
from zaya_jax import config as config_lib
from zaya_jax.bench.machine import file, known
from zaya_jax.plan import planner
from zaya_jax.plan.cost import machine


def _parse(*words):
  return config_lib.Config.parse(words)


def test_a_plan_takes_the_machine_of_its_chip():
  assert machine.of_plan(_parse()) is known.read('mi300x')
  assert machine.of_plan(_parse('--plan.chip=h100')) is known.read('h100')
  assert machine.of_plan(_parse('--plan.chip=cpu')) is None
  assert machine.of_plan(_parse('--machine=none')) is None


def test_a_run_takes_none_unless_one_is_named():
  assert machine.of_run(_parse(), 'NVIDIA H200') is None
  found = machine.of_run(_parse('--machine=h200'), 'NVIDIA H200')
  assert found is known.read('h200')
  with pytest.raises(config_lib.UsageError, match='does not fit the devices'):
    machine.of_run(_parse('--machine=h200'), 'AMD Instinct MI300X')


def test_a_file_decides_what_a_plan_says(tmp_path):
  path = str(tmp_path / 'machine.json')
  slow = [curves.point(2**30, 1.0, 'triad', 1)]
  file.write(path, file.Machine(
    chip='cpu', platform='cpu', devices=1, processes=1,
    sections={'memory': file.section('GB/s', points=tuple(slow))},
  ))  # fmt: skip
  words = '--plan.chip=cpu', '--plan.devices=1'
  before = planner.make(_parse(*words))['time']['step']
  plan = planner.make(_parse(*words, f'--machine={path}'))
  assert plan['time']['step'] > 1.5 * before  # 1 instead of 20 GB/s.
  assert plan['machine']['file'] == path
  content = json.loads((tmp_path / 'machine.json').read_text())
  content['sections']['memory']['points'][0]['seconds'] = 0.01
  (tmp_path / 'machine.json').write_text(json.dumps(content))
  with pytest.raises(config_lib.UsageError, match='was changed since'):
    planner.make(_parse(*words, f'--machine={path}'))
  content['format'] = 9
  (tmp_path / 'machine.json').write_text(json.dumps(content))
  with pytest.raises(config_lib.UsageError, match='has format 9 and this'):
    planner.make(_parse(*words, f'--machine={path}'))


def test_buckets_are_what_was_said_else_what_was_measured():
  bucket = lambda devices, *words: machine.bucket(
    _parse(*words), 'AMD Instinct MI300X', devices
  )
  assert bucket(8) == 0
  assert bucket(8, '--mesh.bucket_mib=3') == 3 * 2**20
  assert bucket(8, '--machine=mi300x') == 2**27
  # Across nodes the smallest that was measured is as fast as the largest.
  assert bucket(1024, '--machine=mi300x') == 2**33
  assert bucket(1, '--machine=mi300x') == 0
