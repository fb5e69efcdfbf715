# SPDX-License-Identifier: Apache-2.0
"""The sweep over dials: what is run, how it resumes, what --fit writes."""

import functools
import json
import math
import signal
import subprocess
import sys

import pytest

from benchmarks import dial, dial_cells, dial_law, dial_table
from benchmarks import sweep as sweep_lib
from tests.benchmarks import dial_law_test
from zaya_jax import config as config_lib
from zaya_jax.plan import law as law_lib

TRUE = dial_law_test.TRUE


def arguments(*flags):
  return dial._parser().parse_args(flags)


@functools.cache
def parsed(*cell):
  return dial_cells.parse(dict(zip(dial_cells.CELL, cell, strict=True)), [])


def result(run, best=1.0):
  """A run whose loss follows the law, and has its best rate at a factor."""
  config = parsed(*(run[key] for key in dial_cells.CELL))
  step = config.data.batch_size * config.data.seq_len
  each = 1.0 if config.model.vocab_size == 320 else 2.5
  count = config.in_steps().num_steps
  tokens = count * step
  size = {**law_lib.parameters(config.model), 'bytes': tokens * each}
  size['context'] = config.data.seq_len * each
  bpb = dial_law.predict(TRUE, size)
  bpb += 0.01 * math.log(run['factor'] / best) ** 2
  steps = {'train/loss': 1.0, 'tokens': tokens, 'step': count}
  steps['throughput/tokens_per_second'] = 1000.0
  scored = {'val/bpb': bpb, 'val/loss': bpb * each * math.log(2)}
  row = dial.read(run, config, [steps, scored])
  assert row['text'] == 'stdlib'
  return row | {'date': '2026-11-25', 'command': 'python'}


def all_runs(args, best=1.0):
  """The runs in the order in which they are made."""
  rows = []
  while run := dial.missing(args, rows):
    rows.append(result(run, best))
  return rows


def test_the_first_seed_is_tuned_and_others_get_the_neighbours():
  rows = all_runs(arguments('--dials=1,2', '--seeds=3'))
  made = [(r['factor'], r['seed']) for r in rows if r['dial'] == 2]
  near = (0.5, 1.0, 2.0)
  assert made == [(f, seed) for seed in range(3) for f in near]
  assert len(rows) == 18


def test_factors_go_on_while_the_best_is_at_the_edge():
  args = arguments('--dials=1', '--seeds=2')
  made = [(r['factor'], r['seed']) for r in all_runs(args, best=7.0)]
  first = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0]
  assert made == [(f, 0) for f in first] + [(f, 1) for f in (4.0, 8.0, 16.0)]
  lowest = [r['factor'] for r in all_runs(args, best=1e-4) if not r['seed']]
  assert min(lowest) == 1 / 16 and len(lowest) == 6


def test_a_factor_that_is_alone_is_taken_as_it_is():
  args = arguments('--dials=1', '--seeds=2', '--factors=1')
  made = [(r['factor'], r['seed']) for r in all_runs(args, best=7.0)]
  assert made == [(1.0, 0), (1.0, 1)]
  # Also where more of them were made before.
  tuned = all_runs(arguments('--dials=1', '--seeds=1'), best=7.0)
  assert dial.missing(args, tuned)['factor'] == 1.0


def test_a_run_that_diverged_is_no_best_rate():
  args = arguments('--dials=1', '--seeds=1')
  rows = []
  while run := dial.missing(args, rows):
    bad = run['factor'] >= 2
    rows.append(result(run, best=4.0) | ({'bpb': None} if bad else {}))
  assert [r['factor'] for r in rows] == [0.5, 1.0, 2.0]
  found = dial.fit(rows)
  assert found['diverged'] == 1 and found['points'][0]['lr'] is None
  assert '0 best rates within' in found['rate']['missing']


def test_a_call_goes_on_behind_the_last_whole_line(tmp_path):
  args = arguments('--dials=1', '--seeds=2')
  rows = all_runs(args)
  path = tmp_path / 'rows.jsonl'
  lines = [json.dumps(row) for row in rows]
  path.write_text('\n'.join([*lines[:4], lines[4][:50]]))
  kept = sweep_lib.read(path)
  assert kept == rows[:4]
  left = dial.missing(args, kept)
  assert (left['factor'], left['seed']) == (1.0, 1)


@pytest.mark.parametrize('n', [1, 5, 12])
def test_flags_are_a_dial_with_another_rate(n):
  args = arguments('--score_bytes=1e6')
  run = {'dial': n, 'longer': 1.0, **dict.fromkeys(dial_cells.HELD, 0)}
  run |= {'factor': 0.5, 'seed': 2}
  config = config_lib.Config.parse(dial_cells.flags_of(args, run, []))
  rule = config_lib.Config.parse([f'--dial={n}'])
  assert config.model == rule.model and config.num_steps == rule.num_steps
  assert config.optim.lr == pytest.approx(rule.optim.lr / 2)
  assert config.optim.lr_final == pytest.approx(rule.optim.lr_final / 2)
  assert (config.seed, config.data.dir) == (2, (
    f'runs/dial/data_{rule.model.vocab_size}',
  ))  # fmt: skip
  more = {**run, 'longer': 4.0, 'experts': 2}
  longer = config_lib.Config.parse(
    dial_cells.flags_of(args, more, ['--data.input=x'])
  )
  assert longer.model.num_experts == 2 and longer.data.input == 'x'
  tokens = lambda c: c.in_steps().num_steps * c.data.batch_size * c.data.seq_len
  assert tokens(longer) == pytest.approx(4 * tokens(rule), rel=0.05)
  step = lambda c: c.data.batch_size * c.data.seq_len
  larger = (step(longer) / step(rule)) ** 0.25
  assert longer.optim.lr == pytest.approx(config.optim.lr * larger, rel=0.01)


def test_what_is_held_is_a_cell_of_its_own_and_no_rate_of_the_rule():
  own = all_runs(arguments('--dials=2', '--seeds=1'))
  held = arguments('--dials=2', '--seeds=1', '--vocab=512', '--row=64')
  rows = own + all_runs(held)
  assert all(dial.missing(held, rows[:n]) for n in range(len(own), len(rows)))
  assert dial.missing(held, rows) is None
  assert {(r['vocabulary'], r['seq_len']) for r in rows[3:]} == {(512, 64)}
  config = config_lib.Config.parse(dial_cells.flags_of(held, rows[-1], []))
  assert (config.model.vocab_size, config.data.seq_len) == (512, 64)
  assert config.data.train_tokenizer == 512
  points = dial.fit(rows)['points']
  assert [(p['vocab'], p['row']) for p in points] == [(0, 0), (512, 64)]
  text = '\n'.join(dial_table.table(dial.fit(rows)))
  assert '| 512 vocab, 64 row |' in text and ' 1 width(s) and ' in text


def test_what_is_fitted_is_shown_and_read_by_the_plan(tmp_path, monkeypatch):
  grid = ('--dials=1,2,3,4', '--longer=0.5,2', '--experts=0,16')
  rows = all_runs(arguments(*grid, '--seeds=1'))
  output, law = tmp_path / 'rows.jsonl', tmp_path / 'law.toml'
  output.write_text('\n'.join(json.dumps(row) for row in rows))
  words = ['dial', '--fit', f'--output={output}', f'--law={law}']
  words.append(f'--result={tmp_path}/fit.json')
  monkeypatch.setattr(sys, 'argv', words)
  shown = []
  monkeypatch.setattr('builtins.print', lambda *w, **_: shown.extend(w))
  dial.main()
  text = '\n'.join(shown)
  assert '| 4 | x2: ' in text and 'Largest run (dial 4, x2)' in text
  assert 'Learning rate: peak 0.00' in text and 'now -1.0' in text
  assert 'The rule costs 0.00% of the loss in the mean.' in text
  assert 'dial 4: 1.00; it costs 0.00% of the loss' in text
  result = json.loads((tmp_path / 'fit.json').read_text())
  assert len(result['points']) == 16 and result['diverged'] == 0
  found = law_lib.Law.read(law)
  assert found.constants == {
    k: pytest.approx(v, rel=0.03) for k, v in TRUE.items()
  }
  assert found.held_out < 1e-3 and found.bytes_per_token == {320: 1.0}
  largest = max(result['points'], key=lambda p: p['active'] * p['tokens'])
  assert found.loss(largest) == pytest.approx(largest['bpb'], rel=1e-4)
  assert found.beyond(largest) == {}
  shown.clear()
  monkeypatch.setattr(sys, 'argv', [*words, '--dials=1,2,3'])
  dial.main()
  text = '\n'.join(shown)
  assert '| 4 | ' not in text and 'Largest run (dial 3, x2)' in text
  assert law_lib.Law.read(law).beyond(largest)
  words.remove(f'--law={law}')
  monkeypatch.setattr(sys, 'argv', [*words, '--experts=16'])
  dial.main()
  result = json.loads((tmp_path / 'fit.json').read_text())
  assert {point['experts'] for point in result['points']} == {16}


def test_runs_of_an_earlier_rule_count_by_their_rates(tmp_path, monkeypatch):
  run = {'dial': 1, 'longer': 1.0, **dict.fromkeys(dial_cells.HELD, 0)}
  row = result({**run, 'factor': 4.0, 'seed': 0})
  output = tmp_path / 'rows.jsonl'
  output.write_text(json.dumps({**row, 'factor': 1.0}))  # Of what was then.
  monkeypatch.setattr(sys, 'argv', ['dial', f'--output={output}'])
  found = []
  monkeypatch.setattr(
    dial, 'sweep', lambda args, more, rows: found.extend(rows)
  )
  dial.main()
  assert found == [row]


def test_runs_on_another_text_get_no_more_lines(tmp_path, monkeypatch):
  run = {'dial': 1, 'longer': 1.0, **dict.fromkeys(dial_cells.HELD, 0)}
  row = result({**run, 'factor': 1.0, 'seed': 0}) | {'text': 'theirs'}
  output = tmp_path / 'rows.jsonl'
  output.write_text(json.dumps(row))
  words = ['dial', f'--output={output}', '--data.input=some/mine.txt']
  monkeypatch.setattr(sys, 'argv', words)
  with pytest.raises(
    SystemExit, match='runs on theirs, .* on mine.txt; scores'
  ):
    dial.main()


def test_a_fit_of_no_runs_says_so(tmp_path, monkeypatch):
  output = tmp_path / 'rows.jsonl'
  words = ['dial', '--fit', '--vocab=512', f'--output={output}']
  monkeypatch.setattr(sys, 'argv', words)
  with pytest.raises(SystemExit, match=f'{output} has no such runs'):
    dial.main()


def test_too_few_runs_are_no_law(tmp_path):
  found = dial.fit(all_runs(arguments('--dials=1,2', '--seeds=1')))
  text = '\n'.join(dial_table.table(found))
  assert 'No law: 2 sizes and lengths cannot tell 5 constants' in text
  with pytest.raises(SystemExit, match='--law: no law: 2 sizes'):
    dial_table.toml(found, [], 'python')


class Child:
  """A trainer that does not end by itself."""

  returncode = None

  def __init__(self, *_, **__):
    self.signals = []

  def __enter__(self):
    return self

  def __exit__(self, *_):
    pass

  def communicate(self, timeout=None):
    if timeout is not None and not self.signals:
      raise subprocess.TimeoutExpired('trainer', timeout)
    return '', ''

  def send_signal(self, number):
    self.signals.append(number)
    assert number == signal.SIGTERM
    self.returncode = 75


def test_when_the_time_is_over_the_run_is_left_for_the_next_call(
  tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(subprocess, 'Popen', Child)
  monkeypatch.setattr(sweep_lib, 'prepare', lambda flags: None)
  output = tmp_path / 'rows.jsonl'
  args = arguments('--minutes=0.01', f'--work={tmp_path}', f'--output={output}')
  dial.sweep(args, [], [])
  assert 'not done in time; call again' in capsys.readouterr().out
  assert not output.exists()
