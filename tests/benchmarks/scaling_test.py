# SPDX-License-Identifier: Apache-2.0
"""One case on virtual devices, and the arithmetic of the rows; no times."""

import argparse
import json
import math
import subprocess
import sys

import jax
import pytest

from benchmarks import cases, record, scaling, updates
from tests.support import tiny_case
from zaya_jax.optim import groups
from zaya_jax.train import state as state_lib


@pytest.mark.parametrize('mesh', cases.MESHES)
def test_every_mesh_takes_all_devices_and_equal_rows(mesh):
  found = tiny_case.config(mesh, 4)
  names = 'replica', 'fsdp', 'expert', 'context'
  axes = [getattr(found.mesh, name) for name in names]
  assert math.prod(axes) == found.plan.devices == 4
  assert found.data.batch_size == 4 * 2 * 2


@pytest.mark.long
def test_case_has_what_was_measured_beside_the_plan():
  row = json.loads(json.dumps(scaling.measure(tiny_case.config('zero1', 2), 1)))
  assert row['tokens_per_step'] == 2 * 2 * 2 * 32
  assert row['step_s'] > 0 and row['plan']['time']['step'] > 0
  assert 0 < row['muon_s'] and 0 < row['optimizer_s']
  assert row['muon_share'] == row['muon_s'] / row['step_s']
  assert row['peak_bytes'] is None  # CPUs do not say.
  held = sum(row['plan']['memory'][k] for k in ('parameters', 'optimizer'))
  assert held < row['compiled_bytes']['total'] < 20 * held
  assert row['losses'][0] == pytest.approx(math.log(64), rel=0.02)
  assert '--model.num_layers: 40 -> 2' in row['flags']
  # ZeRO-1 on two devices sends gradients and weights; a CPU hides nothing.
  assert row['network']['predicted']['bytes'] > 0
  assert 0 <= row['network']['predicted']['hidden_share'] <= 1
  row |= {'case': 'zero1', 'devices': 2}
  assert len(scaling.table([row]).splitlines()) == 2


def test_efficiency_is_the_speed_of_a_device_over_that_of_one_alone():
  rows = [
    {'devices': 1, 'tokens_per_s_device': 50.0},
    {'devices': 2, 'error': 'out of memory'},
    {'devices': 4, 'tokens_per_s_device': 45.0},
  ]
  found = scaling.with_efficiency(rows)
  assert [row.get('efficiency') for row in found] == [1.0, None, 0.9]
  without_one = scaling.with_efficiency([{'devices': 2, 'error': 'no'}])
  assert without_one == [{'devices': 2, 'error': 'no'}]


def test_muon_alone_is_all_of_its_matrices_and_nothing_else():
  state = jax.eval_shape(state_lib.make_init(tiny_case.config('zero1', 1)))
  kinds = groups.label(state.params, optimizer='muon')
  only = updates.only(state.params, kinds, 'muon')
  rows = groups.table(state.params, optimizer='muon')
  expected = {name for name, group, *_ in rows if group == 'muon'}
  found = groups.table(only, optimizer='muon')
  assert {name for name, *_ in found} == expected
  assert len(expected) == 11


def test_needs_nothing_that_reads_data_or_writes_checkpoints():
  code = 'import sys, benchmarks.scaling; print(*sys.modules)'
  done = subprocess.run(
    [sys.executable, '-c', code],
    cwd=record.ROOT,
    capture_output=True,
    text=True,
    check=True,
  )
  heavy = {'grain', 'array_record', 'tensorboardX', 'orbax', 'tokenizers'}
  assert not heavy & set(done.stdout.split())


def test_failed_case_is_a_row_and_a_line(monkeypatch):
  args = argparse.Namespace(platform='cpu', timeout_s=100)
  monkeypatch.setattr(sys, 'argv', ['scaling', '--rows=nonsense'])
  row = cases._child('benchmarks.scaling', 'zero1:2', args)
  assert 'invalid int value' in row['error']
  _, line = scaling.table([row]).splitlines()
  assert line.startswith('zero1') and 'invalid int value' in line
  args.timeout_s = 0
  row = cases._child('benchmarks.scaling', 'zero1:2', args)
  assert row['error'] == 'not done within 0 s'
