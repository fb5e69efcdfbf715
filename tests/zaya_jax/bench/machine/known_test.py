# SPDX-License-Identifier: Apache-2.0
"""Machines that come with the program, beside where their numbers come from."""

import dataclasses
import json
import pathlib

import pytest

from zaya_jax.bench.machine import file, known
from zaya_jax.config import machine as machine_config

RESULTS = pathlib.Path(__file__).parents[4] / 'benchmarks' / 'results'
# RCCL on eight MI300X as AMD has published it: MiB, GB/s of bus bandwidth.
PUBLISHED = {
  1: 67, 2: 105, 4: 142, 8: 175, 16: 197, 32: 241, 64: 274, 128: 295, 256: 306,
  512: 310, 1024: 315, 8192: 318,
}  # fmt: skip


def _worst(machine) -> float:
  """The largest error of an all-reduce, beside the published table."""
  off = []
  for mib, rate in PUBLISHED.items():
    size = mib * 2**20
    wanted = 2 * 7 / 8 * size / (rate * 1e9)
    off.append(abs(machine.collective_s('all-reduce', size, 8) / wanted - 1))
  return max(off)


def test_all_reduce_of_eight_mi300x_is_as_published():
  assert _worst(known.read('mi300x')) < 0.02


def test_another_number_in_the_table_is_seen():
  machine = known.read('mi300x')
  section = machine.sections['collectives']
  points = [
    dataclasses.replace(p, seconds=1.03 * p.seconds) if p.size == 2**26 else p
    for p in section.points
  ]
  section = dataclasses.replace(section, points=tuple(points))
  machine = dataclasses.replace(machine, sections={'collectives': section})
  assert _worst(machine) > 0.02


@pytest.mark.parametrize('name', known.NAMES)
def test_each_value_has_its_source(name):
  machine = known.read(name)
  points = [p for s in machine.sections.values() for p in s.points]
  assert points
  for point in points:
    assert len(point.about) > 15, point
    assert 0 < point.low <= point.seconds <= point.high


def test_flags_know_the_names():
  assert known.NAMES == machine_config.MACHINES


def test_messages_of_two_h100_are_those_that_were_measured():
  measured = file.read(str(RESULTS / 'collectives_h100.json'))
  shipped = known.read('h100')
  for kind in ('all-reduce', 'all-gather', 'permute'):
    for size in (2**10, 2**20, 2**28):
      assert shipped.collective_s(kind, size, 2) == pytest.approx(
        measured.collective_s(kind, size, 2), rel=1e-3
      )


def test_operations_of_h200_are_those_that_were_measured():
  rows = json.loads((RESULTS / 'experts_h200.json').read_text())['rows']
  wanted = {
    row['ms'] / 1e3 for row in rows if row['engine'] == 'mosaic'
    and row['pass'] == 'both' and 'skipped-' not in row['case']
  }  # fmt: skip
  found = {
    p.seconds for p in known.read('h200').sections['operations'].points
    if p.case == 'experts hopper both'
  }  # fmt: skip
  assert sorted(found) == pytest.approx(sorted(wanted), rel=1e-3)


def test_machine_of_another_chip_is_refused():
  assert known.find('h200', 'H200') is known.read('h200')
  with pytest.raises(file.MachineFileError, match='h200 is of NVIDIA H200 and'):
    known.find('h200', 'MI300X')
  with pytest.raises(file.MachineFileError, match='is no machine file'):
    known.find('h300')
