# SPDX-License-Identifier: Apache-2.0
"""--plan.hours: the dial that is done in time, and its words."""

import json
import sys

import pytest

from zaya_jax import config as config_lib
from zaya_jax import main
from zaya_jax.plan import hours, planner
from zaya_jax.plan import law as law_lib

WORDS = ('--mode=plan', '--plan.chip=h200', '--plan.devices=1')


def law(text=60.0):
  constants = {
    'E': 0.4,
    'A': 30.0,
    'a': 0.3,
    'B': text,
    'b': 0.3,
    'g': 0.2,
    'c': 0.1,
  }
  covers = {'active': (1e6, 5e7), 'total': (1e6, 5e9), 'bytes': (1e7, 9e12)}
  covers['context'] = (1, 1e6)
  return law_lib.Law(
    constants=constants,
    covers=covers,
    bytes_per_token={320: 1.0, 65_536: 4.0},
    held_out=0.013,
    about={'text': 'a law of tests'},
  )


@pytest.fixture(autouse=True)
def no_law(monkeypatch):
  """Whatever the program has: None, or what a test puts here."""
  found = {'law': None}
  monkeypatch.setattr(law_lib.Law, 'read', lambda: found['law'])
  return found


def find(*words):
  return hours.find(config_lib.Config.parse([*WORDS, *words]))


def test_it_is_the_largest_dial_that_is_done_in_time():
  found = find('--plan.hours=1')
  step = lambda n: hours._cost(config_lib.Config.parse([*WORDS]).at_dial(n))[0]
  steps = lambda n: config_lib.Config().at_dial(n).num_steps
  n = found['dial']
  assert step(n) * steps(n) <= 3600 < step(n + 1) * steps(n + 1)
  assert found['tokens'] >= 19 * found['active']
  assert 3500 < found['steps'] * found['step'] <= 3600


def test_more_hours_or_devices_are_more_dial_and_tokens():
  rows = [find(f'--plan.hours={h}') for h in (0.1, 1)]
  for less, more in zip(rows, rows[1:], strict=False):
    assert less['dial'] < more['dial'] and less['tokens'] < more['tokens']
  eight = find('--plan.hours=1', '--plan.devices=8')
  assert eight['dial'] > rows[1]['dial']


def test_its_flags_are_the_plan():
  found = find('--plan.hours=1')
  words = [f'--{name}={value}' for name, value in found['flags'].items()]
  config = config_lib.Config.parse([*WORDS, *words])
  dialed = config_lib.Config.parse(
    [*WORDS, f'--dial={found["dial"]}', f'--tokens={found["tokens"]}']
  )
  assert (config.model, config.data) == (dialed.model, dialed.data)
  assert config.optim == dialed.optim
  plan = planner.make(config)
  assert plan['time']['step'] == pytest.approx(found['step'])
  assert plan['memory']['total'] == pytest.approx(found['memory'])


def test_a_dial_that_is_given_gets_tokens():
  found = find('--plan.hours=1', '--dial=10', '--model.num_experts=8')
  assert (found['dial'], found['parameters']) == (10, 70_995_850)
  assert 'model.num_experts' not in found['flags']


def test_by_a_law_the_lowest_loss_decides(no_law):
  by_ratio = find('--plan.hours=0.2')
  no_law['law'] = law(text=30.0)  # It counts little: a larger model.
  found = find('--plan.hours=0.2')
  assert by_ratio['dial'] < found['dial']
  best = found['law']['bits_per_byte']
  for n in (found['dial'] - 2, found['dial'] - 1, found['dial'] + 1):
    other = find('--plan.hours=0.2', f'--dial={n}')['law']['bits_per_byte']
    assert best < other
  no_law['law'] = law(text=300.0)
  assert find('--plan.hours=0.2')['dial'] < found['dial']


def test_a_terminal_gets_a_table(no_law, monkeypatch, capsys):
  monkeypatch.setattr(sys.stdout, 'isatty', lambda: True)
  assert not main.main(['zaya_jax', *WORDS, '--plan.hours=8'])
  shown = ' '.join(capsys.readouterr().out.split())
  assert '8 hours on 1 x H200' in shown and 'no law was fitted' in shown
  assert '--model.d_model=1280' in shown and '--dial=27 --tokens=' in shown
  no_law['law'] = law()
  assert not main.main(['zaya_jax', *WORDS, '--plan.hours=8', '--dial=26'])
  shown = ' '.join(capsys.readouterr().out.split())
  assert 'a law of tests; the largest run, held out, was 1.3% off' in shown
  assert 'extrapolated to 4.31 times the active parameters of its' in shown


def test_a_pipe_gets_json(capsys):
  assert not main.main(['zaya_jax', *WORDS, '--plan.hours=0.1'])
  found = json.loads(capsys.readouterr().out)
  assert found['law'] is None and found['flags']['model.num_layers'] > 1


@pytest.mark.parametrize(
  'words, sentence',
  [
    (['--plan.hours=1', '--tokens=1M'], '--plan.hours=1 and --tokens both say'),
    (['--plan.hours=1', '--plan.search'], 'are two questions'),
    (['--plan.hours=-1'], '--plan.hours=-1.0 must be at least 0'),
    (['--plan.hours=1', '--dial=60'], '--dial=60 does not fit: a device has'),
    (['--dial=60', '--plan.chip=h100'], 'GB, and with --model.remat=block in'),
    (['--dial=60', '--plan.chip=h100'], '; --dial=32 needs 70.'),
    (
      ['--plan.hours=9999', '--plan.devices=1024'],
      '--data.batch_size=512 must be a multiple of 1024',
    ),
  ],
)
def test_bad_flags_are_one_sentence(words, sentence, capsys):
  assert main.main(['zaya_jax', *WORDS, *words]) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert sentence in line


def test_a_dial_that_does_not_fit_may_be_searched_for(monkeypatch, capsys):
  words = ['--mode=plan', '--plan.chip=h100', '--plan.devices=8', '--dial=50']
  assert main.main(['zaya_jax', *words]) == 2
  assert '--dial=50 does not fit' in capsys.readouterr().err
  monkeypatch.setattr(planner.choices, 'make', lambda config: {})
  assert main.main(['zaya_jax', *words, '--plan.search']) == 0


def test_a_dial_that_fits_is_planned(capsys):
  assert not main.main(['zaya_jax', *WORDS, '--dial=32'])
  assert json.loads(capsys.readouterr().out)['parameters']['total'] > 3e9
