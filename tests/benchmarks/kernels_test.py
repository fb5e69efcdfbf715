# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the operations on tiny inputs."""

import json
import sys

import pytest

from benchmarks import kernels


def _row(engine, ms, case='a', direction='both'):
  row = {'op': 'experts', 'case': case, 'pass': direction, 'engine': engine}
  return row | ({} if ms is None else {'ms': ms})


def test_best_of_each_side_and_their_ratio():
  rows = [
    _row('xla', 9.0),
    _row('triton', 2.0),
    _row('hip', None),
    _row('torch eager', 4.0),
    _row('torch compile', 3.0),
    _row('xla', 1.0, case='b'),
  ]
  first, second = kernels.best(rows)
  assert first['ours'] == ['triton', 2.0]
  assert first['peer'] == ['torch compile', 3.0]
  assert first['ratio'] == pytest.approx(1.5)
  assert second['ours'] == ['xla', 1.0] and 'ratio' not in second


def test_rows_of_the_bench_mode_are_written(tmp_path, monkeypatch):
  output = tmp_path / 'kernels.json'
  flags = '--op=newton_schulz --no_torch --bench.case=40x24 --bench.repeats=2'
  monkeypatch.setattr(
    sys, 'argv', ['kernels', *flags.split(), f'--output={output}']
  )
  kernels.main()
  found = json.loads(output.read_text())
  assert found['platform'] == 'cpu' and found['command'] and found['date']
  (best,) = found['best']
  assert best['ours'][0] == 'xla' and best['peer'][0] == 'optax.contrib.muon'
