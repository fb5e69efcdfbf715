# SPDX-License-Identifier: Apache-2.0
"""The grid of ablations: what is run, in which order, and how it resumes."""

import json
import math
import sys

import pytest

from benchmarks import ablations, ablations_table, ablations_variants, sweep
from tests.support import tiny
from zaya_jax import config as config_lib


def arguments(*flags):
  return ablations._parser().parse_args(['--steps=10', *flags])


def result(run, bpb=2.0):
  curve = [[100, 3.0, 0.9, 0.5], [400, 2.5, 0.99, 0.8]]
  took = {'tokens': 7e6, 'wall_s': 1.0, 'step_s': 0.01}
  return {**run, **took, 'bpb': bpb, 'curve': curve}


def at(**best):
  """A loss whose best rate is known, by variant; of others it is 1."""
  rate = lambda run: best.get(run['variant'].replace(' ', '_'), 1.0)
  return lambda run: 2 + abs(math.log2(run['lr'] / rate(run)))


def all_runs(args, bpb, rows=()):
  """The runs in the order in which they are made."""
  rows = list(rows)
  while run := ablations.missing(args, rows):
    rows.append(result(run, bpb(run)))
  return rows


def test_rates_are_tuned_on_one_seed_and_the_best_gets_the_others():
  args = arguments('--only=skip', '--lrs=0.5,1,2', '--seeds=3')
  rows = all_runs(args, at(skip_off=2.0))
  made = [(r['variant'], r['lr'], r['seed']) for r in rows]
  tried = {'preset': [0.5, 1.0, 2.0], 'skip off': [0.5, 1.0, 2.0, 4.0]}
  assert made == [
    (variant, *pair)
    for (variant, rates), lr in zip(tried.items(), (1.0, 2.0), strict=True)
    for pair in [*((rate, 0) for rate in rates), (lr, 1), (lr, 2)]
  ]
  assert ablations_table.best(rows, 'skip off').keys() == {0, 1, 2}


def test_a_rate_that_is_alone_is_taken_as_it_is():
  args = arguments('--only=skip', '--variants=preset', '--lrs=4', '--seeds=2')
  made = [(r['lr'], r['seed']) for r in all_runs(args, at())]
  assert made == [(4.0, 0), (4.0, 1)]


def test_at_equal_time_a_faster_variant_has_more_steps():
  args = ablations._parser().parse_args(
    ['--seconds=10', '--only=skip', '--lrs=0.5,1,2', '--seeds=1']
  )
  rows = []
  while run := ablations.unknown(args, rows):
    row = result(run)
    rows.append({**row, 'step_s': 0.01 if run['variant'] == 'preset' else 0.02})
  assert [(r['variant'], r['steps']) for r in rows] == [
    ('preset', 60), ('skip off', 60),
  ]  # fmt: skip
  made = all_runs(args, at(), rows)[2:]
  assert {(r['variant'], r['steps']) for r in made} == {
    ('preset', 960), ('skip off', 480),
  }  # fmt: skip
  # What a short run could not time is not trained.
  assert {r['variant'] for r in all_runs(args, at(), rows[:1])} == {'preset'}


def test_a_run_that_diverged_is_no_best_rate():
  args = arguments('--only=skip', '--variants=preset', '--lrs=0.5,1,2')
  bpb = lambda run: None if run['lr'] > 1 else at(preset=2.0)(run)
  rows = all_runs(args, bpb)
  assert [(r['lr'], r['seed']) for r in rows] == [
    (0.5, 0), (1.0, 0), (2.0, 0), (1.0, 1), (1.0, 2),
  ]  # fmt: skip
  assert ablations_table.best(rows, 'preset')[0]['lr'] == 1.0
  assert 'diverged' in ablations_table.line(rows[2])


def test_a_line_that_is_cut_is_run_again_and_no_other(tmp_path, capsys):
  args = arguments('--only=skip', '--lrs=0.5,1,2', '--seeds=2')
  rows = all_runs(args, at())
  path = tmp_path / 'rows.jsonl'
  lines = [json.dumps(row) for row in rows]
  path.write_text('\n'.join([*lines[:-1], lines[-1][:30]]))
  kept = sweep.read(path)
  assert kept == rows[:-1] and 'cut short' in capsys.readouterr().out
  left = ablations.missing(args, kept)
  assert (left['variant'], left['seed']) == ('skip off', 1)


def test_another_budget_or_preset_is_another_experiment():
  rows = all_runs(arguments('--only=skip', '--lrs=0.5,1,2'), at())
  for other in ('--steps=20', '--preset=medium'):
    args = arguments('--only=skip', '--lrs=1', other)
    assert ablations.missing(args, rows)['variant'] == 'preset'


def test_flags_of_the_model_make_a_preset_of_their_own():
  args = arguments('--preset=quickstart', '--only=compression', '--lrs=1')
  assert ablations._variants(args) == ['preset']  # Of 5 heads.
  args.more = ['--data.input=mytexts', '--model.head_dim=20']  # Of 8.
  assert 'ccgqa 2x 8x' in ablations._variants(args)
  run = ablations.missing(args, [])
  assert run['preset'] == 'quickstart --model.head_dim=20'
  flags = ablations.flags_of(args, run, 'folder')
  assert set(args.more) <= set(flags)
  args.more = []
  assert ablations.missing(args, [result(run)]) == {
    **run, 'preset': 'quickstart',
  }  # fmt: skip


@pytest.mark.parametrize('preset', ['small', 'medium', 'quickstart'])
def test_every_variant_is_a_configuration(preset):
  args = arguments(f'--preset={preset}')
  names = ablations._variants(args)
  assert names[0] == 'preset' and len(names) > 12
  for variant in names:
    run = {'variant': variant, 'lr': 0.5, 'seed': 1, 'steps': 10}
    flags = ablations.flags_of(args, run, 'folder')
    config = config_lib.Config.parse(flags)
    assert config.seed == 1 and config.num_steps == 10
    half = ablations._preset(args).optim.lr / 2
    assert config.optim.lr == pytest.approx(half)


def test_heads_follow_from_the_width():
  model = tiny.config(d_model=64, head_dim=8)
  mha = ablations_variants.flags('mha', model)
  assert mha[1:] == ['--model.num_heads=8', '--model.num_kv_heads=8']
  most = ablations_variants.flags('ccgqa 2x 8x', model)
  assert most == ['--model.num_heads=4', '--model.num_kv_heads=1']
  narrow = tiny.config(d_model=32, head_dim=8)
  assert ablations_variants.flags('ccgqa 2x 8x', narrow) is None


def test_a_variant_that_there_is_not_is_told():
  args = arguments('--only=skip', '--variants=preset,skip of')
  with pytest.raises(
    SystemExit, match='small has no skip of that differs.*; choose of preset,s'
  ):
    ablations._variants(args)


def test_what_the_preset_already_is_is_no_variant():
  args = arguments('--only=optimizer')
  assert 'momentum 0.85' not in ablations._variants(args)
  args.more = ['--optim.momentum=0.95']
  assert 'momentum 0.85' in ablations._variants(args)


def test_runs_on_another_text_get_no_more_lines(tmp_path, monkeypatch):
  output = tmp_path / 'rows.jsonl'
  row = {'preset': 'small', 'corpus': {'train': {'sha256': '77f51f66cc'}}}
  output.write_text(json.dumps(row))
  words = ['ablations', '--steps=1', f'--output={output}']
  monkeypatch.setattr(sys, 'argv', words)
  with pytest.raises(SystemExit, match='77f51f66.* these would be on stdlib'):
    ablations.main()


def test_interval_is_that_of_student():
  # Of 1, 2 and 3: s = 1, so 4.303 / sqrt(3).
  mean, half = ablations_table.interval([1.0, 2.0, 3.0])
  assert (mean, round(half, 3)) == (2.0, 2.484)
  assert math.isnan(ablations_table.interval([1.0])[1])


@pytest.mark.parametrize(
  'difference, half, lower, said',
  [
    (0.02, 0.01, True, 'agrees'),
    (-0.02, 0.01, True, 'disagrees'),
    (0.005, 0.01, True, 'within the noise'),
    (0.02, 0.01, None, '—'),
    (0.02, math.nan, True, '—'),
  ],
)
def test_verdict(difference, half, lower, said):
  assert ablations_table.verdict(difference, half, lower) == said


def test_table_compares_seed_by_seed():
  args = arguments('--only=router', '--variants=preset,no eda')
  # Seeds differ by 0.1, the variant by 0.01 within each: no noise is left.
  more = lambda run: run['seed'] / 10 + 0.01 * (run['variant'] != 'preset')
  best = at(preset=2.0, no_eda=2.0)
  rows = all_runs(args, lambda run: best(run) + more(run))
  (line,) = [x for x in ablations_table.table(rows) if x.startswith('| no eda')]
  assert '+0.0100 ± 0.0000' in line and 'agrees' in line
  assert '2.1100 ± 0.2484' in line and '0.900, 0.990' in line
