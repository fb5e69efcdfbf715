# SPDX-License-Identifier: Apache-2.0
"""Which runs a race makes, in which order, and which count."""

import argparse
import json
import subprocess

import pytest

from benchmarks import equal_time, race, race_table, record

SECONDS = {'zaya_jax': 120.0, 'adamw': 120.0, 'strong': 120.0}


def arguments(*flags):
  parser = argparse.ArgumentParser()
  race.add_flags(parser)
  return parser.parse_args(flags)


def result(trial, **more):
  return {**trial, 'bpb': 1.0, 'counts': True, 'device': 'x', **more}


def all_runs(args, more=(), target=None, of=lambda trial: {}):
  """The runs in the order in which they are made."""
  rows = []
  while trial := race.missing(args, list(more), SECONDS, target, rows):
    rows.append(result(trial, **of(trial)))
    assert len(rows) < 50
  return rows


def made(rows, *names):
  names = names or ('program', 'seconds', 'lr', 'seed')
  return [tuple(row[name] for name in names) for row in rows]


def test_rates_are_tried_for_a_short_time_and_the_best_gets_it_all():
  args = arguments(
    '--only=zaya_jax,strong', '--seeds=3,4', '--strong_lrs=1,2', '--tune_s=20',
    '--zaya_jax_lrs=3,4',
  )  # fmt: skip
  rows = all_runs(args, of=lambda trial: {'bpb': 5 - trial['lr']})
  assert made(rows) == [
    ('zaya_jax', 20, 3.0, 3),
    ('zaya_jax', 20, 4.0, 3),
    ('zaya_jax', 120, 4.0, 3),
    ('zaya_jax', 120, 4.0, 4),
    ('strong', 20, 1.0, 3),
    ('strong', 20, 2.0, 3),
    ('strong', 120, 2.0, 3),
    ('strong', 120, 2.0, 4),
  ]


def test_without_a_shorter_time_the_trials_are_the_first_seed():
  args = arguments('--only=adamw', '--seeds=0,1', '--adamw_lrs=1,2')
  rows = all_runs(args, of=lambda trial: {'bpb': trial['lr']})
  assert made(rows, 'lr', 'seed') == [(1, 0), (2, 0), (1, 1)]


def test_rates_are_not_judged_by_runs_that_end_at_the_target():
  args = arguments('--only=adamw', '--seeds=0', '--adamw_lrs=1,2')
  rows = all_runs(args, target=0.7, of=lambda trial: {'bpb': trial['lr']})
  assert made(rows, 'target', 'lr') == [(None, 1), (None, 2), (0.7, 1)]


def test_a_run_that_took_too_long_is_made_again():
  args = arguments('--only=zaya_jax', '--seeds=0', '--zaya_jax_lrs=1')
  late = iter([True, True, False])
  rows = all_runs(args, of=lambda trial: {'counts': not next(late)})
  assert [row['counts'] for row in rows] == [False, False, True]
  (mine,) = race_table.groups(rows)
  assert mine == rows[2:]


def test_peers_do_not_care_for_flags_of_the_trainer_but_of_the_data():
  args = arguments('--only=zaya_jax,adamw', '--seeds=0', '--adamw_lrs=1')
  ours, theirs = all_runs(args, ['--optim.lr=1e-3', '--data.seq_len=512'])
  assert ours['flags'] == '--optim.lr=1e-3 --data.seq_len=512'
  assert ours['lr'] == 1e-3  # The only one that is tried.
  assert theirs['flags'] == '--data.seq_len=512'


@pytest.mark.parametrize('took, counts', [(120.0, True), (120.1, False)])
def test_only_a_run_within_the_time_counts(took, counts, monkeypatch):
  trial = {'program': 'strong', 'shape': '8x512', 'seconds': 120.0}
  found = {'train_s': took, 'steps': 7}
  monkeypatch.setattr(race, '_peer', lambda *unused: dict(found))
  config = race.record.preset('small')
  row = race._make(arguments(), [], config, trial, [])
  assert row['counts'] is counts
  assert row['tokens'] == 7 * 65536


def test_table_has_the_best_rate_of_the_full_time_alone():
  args = arguments(
    '--only=adamw', '--seeds=0,1', '--adamw_lrs=1,2', '--tune_s=9'
  )
  more = {'train_s': 119.0, 'tokens': 2_000_000, 'train_tokens': 4_000_000}
  rows = all_runs(
    args, of=lambda trial: {'bpb': trial['lr'] + trial['seed'], **more}
  )
  raced = result({**rows[-1], 'target': 0.7, 'seconds': 500.0})
  head, _, line = equal_time.table([*rows, raced])
  assert head.count('|') == line.count('|') == 10
  assert '| 8x512, 1 | 2 | 119.0 to 119.0 | 2 | 0.50 | 1.5000 ±' in line


def test_runs_on_another_text_get_no_more_lines(tmp_path, monkeypatch):
  args = arguments('--only=zaya_jax')
  args.output = tmp_path / 'rows.jsonl'
  corpus = {'train': {'sha256': '77f51f66cc'}, 'held_out': {'sha256': '8a'}}
  args.output.write_text(json.dumps({'corpus': corpus}))
  monkeypatch.setattr(race.race_data, 'make', lambda *unused: None)
  monkeypatch.setattr(race.race_data, 'facts', lambda unused: {})
  with pytest.raises(SystemExit, match='has runs on corpus 77f51f66, scored'):
    race.run(args, [], 'benchmarks.equal_time', SECONDS)


@pytest.mark.parametrize(
  'flag, said',
  [
    ('--only=zaya_jax,gpt', 'gpt does not race; choose of zaya_jax,adamw'),
    ('--strong_shape=8', '8 must be LAYERSxWIDTH'),
    ('--adamw_shape=8x500', '8x500 must be LAYERSxWIDTH'),
    ('--adamw_shape=8x0.5', 'for example 8x512'),
    ('--adamw_shape=8x512x0', 'or LAYERSxWIDTHxROWS'),
    ('--adamw_shape=8x512x32x2', 'or LAYERSxWIDTHxROWS'),
  ],
)
def test_what_cannot_race_is_refused(flag, said, capsys):
  with pytest.raises(SystemExit, match='2'):
    arguments(flag)
  assert said in capsys.readouterr().err
  arguments('--only=strong', '--strong_shape=12x768')


@pytest.mark.parametrize('shape, rows', [('8x512', 64), ('8x512x32', 32)])
def test_a_peer_may_have_rows_of_its_own(shape, rows, monkeypatch):
  told = {}

  def run(command, **how):
    del how
    told.update(json.loads(command[-1]))
    found = json.dumps({'steps': 10, 'train_s': 1.0})
    return subprocess.CompletedProcess(command, 0, f'compiling\n{found}')

  monkeypatch.setattr(subprocess, 'run', run)
  monkeypatch.setattr(race.race_data, 'windows', lambda *_: ('a', 'b'))
  monkeypatch.setattr(race.race_data, 'bytes_per_token', lambda _: 3.0)
  args = arguments(f'--strong_shape={shape}')
  rates = {'lr': 0.02, 'seed': 0, 'seconds': 40.0, 'target': None}
  trial = {'program': 'strong', 'shape': args.strong_shape, **rates}
  row = race._make(args, [], record.preset('small'), trial, [])
  assert (told['layers'], told['width'], told['rows']) == (8, 512, rows)
  assert row['tokens'] == 10 * rows * 1024 and row['counts']


def test_peers_need_pytorch(tmp_path, monkeypatch):
  monkeypatch.setattr(race.race_data, 'make', lambda *unused: None)
  monkeypatch.setattr(race.race_data, 'facts', lambda _: {})
  monkeypatch.setattr(race.importlib.util, 'find_spec', lambda _: None)
  args = arguments('--only=zaya_jax,strong')
  args.output = tmp_path / 'rows.jsonl'
  with pytest.raises(SystemExit, match='needs PyTorch.*race zaya_jax alone'):
    race.run(args, [], 'benchmarks.speedrun', SECONDS)
