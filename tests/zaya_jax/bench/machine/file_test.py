# SPDX-License-Identifier: Apache-2.0
"""machine.json: written, read, edited, and asked by planners."""

import dataclasses
import json

import pytest

from tests.support import curves
from zaya_jax import config as config_lib
from zaya_jax.bench.machine import file

POINTS = (
  curves.point(1000, 1e-5, devices=2),
  curves.point(100_000, 1e-3, devices=2),
  curves.point(1000, 4e-5, devices=8),
  curves.point(100_000, 4e-3, devices=8),
)


@pytest.fixture
def machine():
  return dataclasses.replace(
    file.here(),
    sections={
      'collectives': file.section(
        'GB/s', points=POINTS, notes=('a',), missing=('b x 2',)
      )
    },
  )


def test_what_is_written_is_read(machine, tmp_path):
  path = str(tmp_path / 'machine.json')
  file.write(path, machine)
  assert file.read(path) == machine
  assert file.read(path, chip=machine.chip) == machine
  assert file.read_to_add(path, file.here()) == machine
  assert file.read_to_add(str(tmp_path / 'new.json'), file.here()).name in (
    '8 x cpu (cpu) of 1 process'
  )


@pytest.mark.parametrize(
  'edit',
  [
    lambda c: c['sections']['collectives']['points'][0].update(seconds=1e-6),
    lambda c: c.update(chip='NVIDIA H200'),
    lambda c: c.update(devices=16),
    lambda c: c['sections'].clear(),
    lambda c: c.update(sha256='0' * 64),
  ],
)
def test_edited_file_is_refused(machine, tmp_path, edit):
  path = tmp_path / 'machine.json'
  file.write(str(path), machine)
  content = json.loads(path.read_text())
  path.write_text(json.dumps(content, indent=3))  # Spaces say nothing.
  assert file.read(str(path)) == machine
  edit(content)
  path.write_text(json.dumps(content))
  with pytest.raises(file.MachineFileError, match='was changed since') as told:
    file.read(str(path))
  assert told.value.exit_code == 3


@pytest.mark.parametrize('text', ['', '[]', '{}', '{"rows": []}', 'x'])
def test_other_file_is_refused(tmp_path, text):
  path = tmp_path / 'machine.json'
  path.write_text(text)
  with pytest.raises(file.MachineFileError, match='is no machine file'):
    file.read(str(path))


def test_file_of_another_chip_is_refused(machine, tmp_path):
  path = str(tmp_path / 'machine.json')
  other = dataclasses.replace(machine, chip='NVIDIA H200')
  file.write(path, other)
  with pytest.raises(file.MachineFileError, match='of NVIDIA H200 and not of'):
    file.read(path, chip=machine.chip)
  with pytest.raises(config_lib.UsageError, match='8 x NVIDIA H200'):
    file.read_to_add(path, file.here())


@pytest.mark.parametrize(
  'size, devices, seconds',
  [
    (1000, 2, 1e-5),
    (10_000, 2, 1e-4),
    (10, 8, 4e-5),
    (1_000_000, 8, 4e-2),
    (1000, 4, 2e-5),  # Half of the way in logarithms.
    (10_000, 4, 2e-4),
  ],
)
def test_time_of_a_collective(machine, size, devices, seconds):
  found = machine.collective_s('all-reduce', size, devices)
  assert found == pytest.approx(seconds)


@pytest.mark.parametrize('kind, devices', [('all-reduce', 16), ('permute', 2)])
def test_what_was_not_measured_is_not_made_up(machine, kind, devices):
  with pytest.raises(LookupError, match=f'not on {devices}'):
    machine.collective_s(kind, 1000, devices)


def test_one_point_is_no_curve():
  alone = curves.point(1000, 2e-5, devices=4)
  section = file.section('GB/s', points=(*POINTS[:2], alone))
  machine = dataclasses.replace(file.here(), sections={'collectives': section})
  assert machine.collective_s(alone.case, 1000, devices=2) == 1e-5
  with pytest.raises(LookupError, match=r'on \[2\] devices, not on 4'):
    machine.collective_s(alone.case, 1000, devices=4)
