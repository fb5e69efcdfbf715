# SPDX-License-Identifier: Apache-2.0
"""The trainer in a race: its clock, its steps, and how it is stopped."""

import argparse
import json
import pathlib
import sys
import time

import pytest

from benchmarks import race_ours
from zaya_jax import config as config_lib

# Two scores of 5 s each lie between the rows of steps, and 7 s of start before.
LOG = [
  {'step': 1, 'time/step_s': 0.5, 'time/elapsed_s': 7.5, 'train/loss': 9.0},
  {'step': 10, 'time/step_s': 0.1, 'time/elapsed_s': 8.4, 'train/loss': 5.0},
  {'step': 10, 'time/unix_s': 113.4, 'val/bpb': 0.9},
  {'step': 20, 'time/step_s': 0.2, 'time/elapsed_s': 15.4, 'train/loss': 4.0},
  {'step': 20, 'time/unix_s': 120.4, 'val/bpb': 0.7},
]
ARGS = argparse.Namespace(
  preset='small', data=pathlib.Path('runs/race'), every=100
)
TRIAL = {
  'program': 'zaya_jax', 'preset': 'small', 'flags': '', 'seconds': 120.0,
  'lr': 4e-3, 'seed': 4, 'target': None,
}  # fmt: skip


def test_only_steps_are_on_the_clock():
  assert race_ours.seconds_of(LOG) == pytest.approx(0.5 + 9 * 0.1 + 10 * 0.2)
  assert race_ours.seconds_of(LOG, 10) == pytest.approx(0.5 + 9 * 0.1)
  # The wall clock would have counted the score between.
  assert LOG[3]['time/elapsed_s'] - LOG[0]['time/elapsed_s'] > 7


def test_curve_has_both_clocks():
  first, last = race_ours.curve(LOG, began=100.0)
  assert first['train_s'] == pytest.approx(1.4)
  assert first['whole_s'] == pytest.approx(13.4)
  assert (last['step'], last['bpb']) == (20, 0.7)
  assert last['train_s'] == pytest.approx(3.4)


@pytest.mark.parametrize(
  'target, step', [(0.95, 10), (0.9, 10), (0.8, 20), (0.6, None), (None, None)]
)
def test_reached_is_the_first_score_at_or_below(target, step):
  found = race_ours.reached(race_ours.curve(LOG, 0.0), target)
  assert (found and found['step']) == step


def test_steps_fill_the_time_at_the_slowest_speed_known(monkeypatch):
  asked = []

  def train(args, more, trial, steps, every):
    asked.append((steps, every))
    return {'late_step_s': 0.06}

  monkeypatch.setattr(race_ours, '_train', train)
  race_ours.run(ARGS, [], TRIAL, [])
  # A short run first, whose seconds are not those of the race.
  assert asked == [(60, 0), (int(0.96 * 120 / 0.06), 100)]
  known = [{**TRIAL, 'step_s': s} for s in (0.05, 0.08)]
  other = {**TRIAL, 'flags': '--model.num_layers=40', 'step_s': 9.0}
  race_ours.run(ARGS, [], TRIAL, [*known, other])
  assert asked[2:] == [(int(0.985 * 120 / 0.08), 100)]


def test_rate_is_a_trapezoid_over_the_steps_of_the_race():
  flags = race_ours.flags_of(
    ARGS, ['--optim.warmup_steps=7'], TRIAL, steps=900, every=25, folder='dir'
  )
  found = config_lib.Config.parse(flags).optim
  assert (found.lr, found.lr_final) == (TRIAL['lr'], 0)
  assert found.schedule == 'wsd'
  assert (found.warmup_steps, found.decay_steps) == (7, 405)


def test_flags_are_the_preset_scored_on_everything_held_out():
  flags = race_ours.flags_of(
    ARGS, ['--optim.lr=1e-3'], TRIAL, steps=900, every=25, folder='dir'
  )
  config = config_lib.Config.parse(flags)
  small = config_lib.Config.parse(['--flagfile=configs/small.flags'])
  assert config.model == small.model
  assert config.optim.lr == 1e-3 and config.optim.schedule_steps == 0
  assert config.data.dir == ('runs/race/shards',)
  assert (config.num_steps, config.seed) == (900, 4)
  assert config.mesh.replica == 1  # Peers have one GPU, too.
  # Scores stand at rows of steps, and no save lies between.
  assert config.eval.every % config.log.every == 0
  assert config.eval.batches == config.checkpoint.every == 0


def test_a_run_with_one_score_writes_as_few_rows_as_others():
  flags = race_ours.flags_of(ARGS, [], TRIAL, steps=2169, every=0, folder='dir')
  assert config_lib.Config.parse(flags).log.every == 10


TRAINER = """#!{python}
import json, pathlib, signal, sys, time
def end(*unused):
  sys.exit(75)
signal.signal(signal.SIGTERM, end)
flags = dict(f[2:].split('=', 1) for f in sys.argv[1:] if '=' in f)
folder = pathlib.Path(flags['run_dir'])
(folder / 'config.json').write_text('{{"devices": {{"kind": "toy"}}}}')
with open(folder / 'metrics.jsonl', 'w', buffering=1) as file:
  for step in range(1, int(flags['num_steps']) + 1):
    row = {{'step': step, 'time/step_s': 0.5, 'time/elapsed_s': 2 * step,
           'train/loss': 3.0}}
    print(json.dumps(row), file=file)
    row = {{'step': step, 'time/unix_s': time.time(), 'val/bpb': 3 - step}}
    print(json.dumps(row), file=file)
    time.sleep(0.02 if step < 2 else {pause})
sys.exit({code})
"""


def trainer(folder, monkeypatch, pause=0.02, code=0):
  """A program in place of Python that answers as the trainer does."""
  path = folder / 'trainer'
  text = TRAINER.format(python=sys.executable, pause=pause, code=code)
  path.write_text(text)
  path.chmod(0o755)
  monkeypatch.setattr(race_ours.sys, 'executable', str(path))


def test_a_run_ends_at_the_target(tmp_path, monkeypatch):
  trainer(tmp_path, monkeypatch, pause=60)
  began = time.monotonic()
  row = race_ours._train(ARGS, [], {**TRIAL, 'target': 1.5}, 50, every=1)
  assert time.monotonic() - began < 30  # Not 48 minutes.
  assert row['steps'] == 2 and row['train_s'] == 1.0
  assert race_ours.reached(row['curve'], 1.5)['step'] == 2


def test_a_run_says_what_it_took_beside_training(tmp_path, monkeypatch):
  trainer(tmp_path, monkeypatch)
  row = race_ours._train(ARGS, [], TRIAL, 4, every=1)
  assert (row['steps'], row['device'], row['bpb']) == (4, 'toy', -1)
  # From the first step to the last 6 s, and the first has taken half a one.
  assert row['aside_s'] == pytest.approx(6 + 0.5 - 2.0)
  json.dumps(row)


def test_a_run_keeps_how_its_routers_spread(tmp_path, monkeypatch):
  trainer(tmp_path, monkeypatch)
  row = race_ours._train(ARGS, [], TRIAL, 2, every=1)
  # The toy has no routers, as a dense model.
  assert row['log'] == [[1, 3.0, None, None], [2, 3.0, None, None]]
  told = {'step': 10, 'train/loss': 5.00004, 'moe/entropy': 0.9}
  assert race_ours.log_of([told | {'moe/load_min': 0.2}]) == [[10, 5, 0.9, 0.2]]


def test_a_trainer_that_fails_is_an_error(tmp_path, monkeypatch):
  trainer(tmp_path, monkeypatch, code=3)
  with pytest.raises(SystemExit, match='zaya_jax ended: 3'):
    race_ours._train(ARGS, [], TRIAL, 1, every=1)
