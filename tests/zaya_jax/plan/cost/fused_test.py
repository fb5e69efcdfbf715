# SPDX-License-Identifier: Apache-2.0
"""Parts by measured operations, against sums made by hand and real steps."""

import json
import pathlib

import pytest

from benchmarks import planned
from tests.support import curves, released
from zaya_jax.bench.sweep import record
from zaya_jax.plan.cost import division, fused, rates
from zaya_jax.runtime import chips

TOKENS = 16_384
RESULTS = pathlib.Path(__file__).parents[4] / 'benchmarks' / 'results'


def _point(case, size, work, seconds):
  return record.Point(
    case=case, devices=1, size=size, work=work, seconds=seconds, low=seconds,
    high=seconds, samples=1, calls=1,
  )  # fmt: skip


def _parts(*words, **sections):
  config = released.parse(
    '--plan.devices=1', '--data.batch_size=4', '--optim.accumulation=1',
    '--model.remat=cheap', '--optim.newton_schulz_gram=false', *words,
  )  # fmt: skip
  speed = rates.Rates(chips.CHIPS['h200'], curves.machine(**sections))
  return fused.Parts(config, division.make(config), speed)


# What ops/*/cases.py count at the shape of the model, and 2 ms for it.
EXPERTS = 18 * TOKENS * 2048**2
ATTENTION = 7 * 2 * 4 * (4096 * 4097 / 2) * 8 * 128
HEAD = 6 * 8192 * 2048 * 262_272


@pytest.mark.parametrize(
  'part, op, flops, calls',
  [
    ('experts', 'experts', EXPERTS, 40),
    ('attention', 'attention', ATTENTION, 40),
    ('head', 'cross_entropy', HEAD, 2),
  ],
)
def test_an_operation_of_the_measured_shape_takes_its_time(
  part, op, flops, calls
):
  rows = [_point(f'{op} hopper both', 1, flops, 2e-3)]
  parts = _parts(operations=rows)
  assert parts.find(part).seconds == pytest.approx(calls * 2e-3)
  # Twice the tokens take twice as long.
  twice = _parts('--data.batch_size=8', operations=rows)
  assert twice.find(part).seconds == pytest.approx(2 * calls * 2e-3)
  # What was not measured is not known here.
  assert parts.find('router') is None


def test_remat_computes_blocks_again():
  rows = [
    _point('experts hopper both', 1, EXPERTS, 3e-3),
    _point('experts hopper forward', 1, EXPERTS / 3, 1e-3),
  ]
  again = _parts('--model.remat=block', operations=rows).find('experts')
  assert again.seconds == pytest.approx(40 * 4e-3)


def test_newton_schulz_takes_the_form_of_the_run():
  work = 16 * 5 * (3 * 2048**2 * 4096 + 2048**3)
  rows = [_point('newton_schulz hopper forward', 1, work, 8e-3)]
  plain = _parts(operations=rows).newton_schulz().seconds
  gram = _parts(
    '--optim.newton_schulz_gram=true', operations=rows
  ).newton_schulz().seconds  # fmt: skip
  # 640 matrices of 4,096 x 2,048 in sixteens, and the smaller ones.
  assert 40 * 8e-3 < plain < 2 * 40 * 8e-3
  saved = 640 * (5 * (3 * 2**34 + 2**33) - (6 * 2**34 + 14 * 2**33))
  assert plain - gram == pytest.approx(saved / work * 8e-3, rel=0.05)


def _within(rows, share):
  kept = [row for row in rows if row['counts']]
  off = [abs(row['plan_s'] / row['step_s'] - 1) for row in kept]
  return sum(each <= share for each in off), len(off)


def test_steps_on_gpus_are_as_planned():
  """Measured by others of our programs; the plan has not changed since."""
  rows = json.loads((RESULTS / 'planned.json').read_text())['rows']
  near, count = _within(rows, 0.1)
  assert near >= count - 1 and _within(rows, 0.11)[0] == count >= 6
  wrong = [{**row, 'plan_s': row['sheet_s']} for row in rows]
  near, _ = _within(wrong, 0.1)
  assert near < count / 2
  known = next(
    (name, preset, row)
    for name, preset, row in planned._measured()
    if name == 'ladder_h200'
  )
  again = planned._row(*known)
  stored = next(
    row for row in rows
    if (row['file'], row['step_s']) == (again['file'], again['step_s'])
  )  # fmt: skip
  assert again['plan_s'] == pytest.approx(stored['plan_s'], rel=1e-6)
  assert again['memory'] == stored['memory']
