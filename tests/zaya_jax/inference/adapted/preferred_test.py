# SPDX-License-Identifier: Apache-2.0
"""A preference is learned, from the command line."""

import json

import pytest

from tests.support import compiled, tuning
from zaya_jax import main
from zaya_jax.inference.adapted import moved

FLAGS = [
  '--lora.rank=2', '--lora.alpha=8', '--optim.lr=0.03', '--num_steps=24',
  '--data.seq_len=128', '--log.sample_every=0', '--log.every=1',
]  # fmt: skip
DPO = ['--dpo.beta=0.5']


@pytest.fixture(scope='module', autouse=True)
def compiled_once():
  yield from compiled.once()


def pairs(path, swapped=False):
  """Of two answers people prefer the one with a 7."""
  names = ('rejected', 'chosen') if swapped else ('chosen', 'rejected')
  rows = [
    {'prompt': f'Say {i}.', names[0]: f'{i} 77', names[1]: f'{i} 33'}
    for i in range(60)
  ]
  path.write_text('\n'.join(map(json.dumps, rows)))


@pytest.fixture(scope='module')
def home(tmp_path_factory):
  """A folder with the base, pairs, conversations, and a run."""
  folder = tmp_path_factory.mktemp('dpo')
  tuning.model_folder(folder / 'hf')
  tuning.write(folder / 'chats.jsonl')
  pairs(folder / 'pairs.jsonl')
  pairs(folder / 'swapped.jsonl', swapped=True)
  assert tune(folder, 'run') == 0
  return folder


def tune(folder, run, *args, data='pairs'):
  text = f'--data.input={folder}/{data}.jsonl'
  named = [*FLAGS, *DPO, *args]
  return tuning.tune(folder / 'hf', folder / run, text, *named)


def rows(folder, run):
  lines = (folder / run / 'metrics.jsonl').read_text().splitlines()
  return [json.loads(line) for line in lines]


def test_preference_is_learned(home):
  steps = [row for row in rows(home, 'run') if 'train/loss' in row]
  first, last = steps[0], steps[-1]
  assert first['train/loss'] == pytest.approx(0.6931, abs=1e-3)
  assert first['dpo/margin'] == pytest.approx(0, abs=1e-4)
  assert last['train/loss'] < 0.5
  (held_out,) = [row for row in rows(home, 'run') if 'val/dpo/loss' in row]
  assert held_out['val/dpo/accuracy'] > 0.9
  assert held_out['val/dpo/margin'] > 0.4
  assert held_out['val/dpo/loss'] < 0.55


@pytest.mark.long
def test_swapped_answers_are_learned_the_other_way(home):
  """The margin of the swapped pairs grows, so that of the others falls."""
  assert tune(home, 'swapped', data='swapped') == 0
  finals = [
    [row for row in rows(home, run) if 'val/dpo/loss' in row][-1]
    for run in ('run', 'swapped')
  ]
  assert all(row['val/dpo/accuracy'] > 0.9 for row in finals)
  log_probs = [
    row['val/dpo/chosen_log_prob'] - row['val/dpo/rejected_log_prob']
    for row in finals
  ]
  assert min(log_probs) > 0


def test_run_says_which_experts_moved(home):
  found = json.loads((home / 'run' / moved.FILE_NAME).read_text())
  assert found['tokens'] > 0
  for share in (found['base'], found['tuned']):
    assert all(abs(sum(layer) - 1) < 1e-3 for layer in share)
  assert len(found['moved']) == len(found['base'])
  assert (
    'net, in the layer where it is most'
    in (home / 'run' / 'log.txt').read_text()
  )


@pytest.mark.long
@pytest.mark.parametrize(
  'flags', [['--mesh.replica=2'], ['--mesh.fsdp=2'], ['--quant=int8']]
)
def test_first_steps_are_the_same_on_a_mesh(home, flags):
  run = flags[0].strip('-').replace('=', '_')
  assert tune(home, run, *flags) == 0
  mine, theirs = rows(home, run), rows(home, 'run')
  near = 0.02 if flags[0].startswith('--quant') else 1e-3
  for a, b in list(zip(mine, theirs, strict=True))[:4]:
    for name in ('train/loss', 'dpo/margin'):
      assert a[name] == pytest.approx(b[name], abs=near)


@pytest.mark.parametrize(
  'data, args, rule',
  [
    ('pairs', ['--dpo.beta=0'], 'holds pairs of answers'),
    ('chats', [], 'has none; prepare rows that have chosen and rejected'),
    ('pairs', ['--lora.rank=0'], '--lora.rank=0 trains all parameters'),
    ('pairs', ['--mesh.context=2'], '--mesh.context=2 divides rows'),
    (
      'pairs',
      ['--dpo.beta=0', '--dpo.label_smoothing=0.1'],
      'is of --dpo.beta, which is 0',
    ),
  ],
)
def test_what_does_not_go_together_is_refused(home, capsys, data, args, rule):
  assert tune(home, 'wrong_' + data, *args, data=data) == 2
  assert rule in capsys.readouterr().err


def test_windows_are_not_cut_in_two(home, capsys):
  shards = f'--data.dir={home}/run/data'
  assert tune(home, 'cut', shards, '--data.seq_len=64') == 2
  assert 'would cut pairs' in capsys.readouterr().err


def test_score_is_that_of_the_adapter(home):
  args = [f'--source={home}/run', '--mode=generate', '--prompt=a']
  assert main.main(['zaya_jax', *args, '--generate.max_tokens=2']) == 0
