# SPDX-License-Identifier: Apache-2.0
"""A preference is learned, from the command line."""

import json

import numpy as np
import pytest

from tests.support import compiled, tuning
from zaya_jax import config as config_lib
from zaya_jax import main
from zaya_jax.checkpoint import meta
from zaya_jax.checkpoint.reading import finder
from zaya_jax.hub import leaves as leaves_lib
from zaya_jax.hub.adapters import adapter, bases
from zaya_jax.inference import load as load_lib
from zaya_jax.inference.adapted import moved
from zaya_jax.parallel import mesh as mesh_lib

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
    ('pairs', ['--restore='], '--restore= names none'),
    ('pairs', ['--mesh.context=2'], '--mesh.context=2 divides rows'),
    ('pairs', ['--optim.balance=loss'], 'take another --optim.balance'),
    ('pairs', ['--nodata.mask_documents'], 'would see the others'),
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


def test_recipe_is_refused(home, capsys):
  args = [f'--restore={home}/hf', f'--run_dir={home}/phases', *DPO]
  recipe = f'--recipe={home}/pairs.jsonl'
  assert main.main(['zaya_jax', *args, recipe]) == 2
  assert 'a recipe has no one model to compare with' in capsys.readouterr().err


def test_windows_are_not_cut_in_two(home, capsys):
  shards = f'--data.dir={home}/run/data'
  assert tune(home, 'cut', shards, '--data.seq_len=64') == 2
  assert 'would cut pairs' in capsys.readouterr().err


def test_score_is_that_of_the_adapter(home):
  args = [f'--source={home}/run', '--mode=generate', '--prompt=a']
  assert main.main(['zaya_jax', *args, '--generate.max_tokens=2']) == 0


# All parameters; the balancing bias, which would move, is asked to.
ALL = [
  '--lora.rank=0', '--lora.alpha=0', '--optim.lr=3e-3', '--num_steps=6',
  '--optim.schedule_steps=6', '--optim.balance_lr=0.01', '--log.every=1',
]  # fmt: skip


@pytest.fixture(scope='module')
def whole(home):
  assert tune(home, 'all', *ALL) == 0
  return home


def train_rows(folder, run):
  names = ('step', 'train/loss', 'dpo/margin', 'dpo/chosen_log_prob')
  return [
    [row[name] for name in names]
    for row in rows(folder, run)
    if 'train/loss' in row
  ]


def test_all_parameters_learn_a_preference(whole):
  steps = [row for row in rows(whole, 'all') if 'train/loss' in row]
  assert steps[0]['train/loss'] == pytest.approx(0.6931, abs=1e-3)
  assert steps[0]['dpo/margin'] == pytest.approx(0, abs=1e-4)
  assert steps[-1]['train/loss'] < 0.6
  (held_out,) = [row for row in rows(whole, 'all') if 'val/dpo/loss' in row]
  assert held_out['val/dpo/accuracy'] > 0.9
  assert held_out['val/dpo/loss'] < 0.6
  assert not (whole / 'all' / moved.FILE_NAME).exists()


def test_checkpoint_names_the_reference_and_holds_the_model(whole):
  about = meta.read(finder.resolve(str(whole / 'all')))
  model = leaves_lib.find(str(whole / 'hf'))
  assert adapter.of(about) is None
  named = adapter.of(about, adapter.REFERENCE)
  assert named.fingerprint == adapter.identity(model)
  found = tuning.leaves(whole / 'all')
  theirs = {n for n in model.leaves if n.startswith('params/')}
  assert {n for n in found if n.startswith('params/')} == theirs
  assert not any(n.startswith('reference') for n in found)
  bias = 'buffers/layers/router/balance_bias'
  parts = leaves_lib.parts(model.leaves[bias], bias)
  before = [values for _, values in parts]
  np.testing.assert_array_equal(found[bias], before)
  up = 'params/layers/experts/gate_up'
  assert (found[up][0] != np.asarray(model.leaves[up][(0,)])).any()


def go_on(home, run):
  """Six steps, of which two were done before."""
  assert tune(home, run, *ALL, '--num_steps=2') == 0
  return tune(home, run, *ALL)


def test_resumed_run_is_bit_equal(whole):
  assert go_on(whole, 'resumed') == 0
  assert train_rows(whole, 'resumed') == train_rows(whole, 'all')
  found, wanted = (tuning.leaves(whole / run) for run in ('resumed', 'all'))
  assert found.keys() == wanted.keys()
  for name in wanted:
    np.testing.assert_array_equal(found[name], wanted[name], name)


def test_weights_of_now_as_the_reference_are_told_apart(whole, monkeypatch):
  """What a run that goes on would compute, were its reference forgotten."""

  def of_now(config, mesh, about):
    params, _, _ = bases._put(config, mesh, leaves_lib.find(config.run_dir))
    return {adapter.REFERENCE: params}, adapter.of(about, adapter.REFERENCE)

  monkeypatch.setattr(bases, 'again', of_now)
  assert go_on(whole, 'forgotten') == 0
  found, wanted = (train_rows(whole, run) for run in ('forgotten', 'all'))
  assert found[:2] == wanted[:2]
  # At its first step it would cost what it costs to know nothing.
  assert found[2][1] == pytest.approx(0.6931, abs=1e-3)
  assert abs(found[2][1] - wanted[2][1]) > 1e-3
  up = 'params/layers/experts/gate_up'
  found, wanted = (tuning.leaves(whole / r)[up] for r in ('forgotten', 'all'))
  assert (found != wanted).any()


def test_run_keeps_to_its_reference(whole, capsys):
  """Refused are another model in its place, and none."""
  more = [*ALL, '--num_steps=8']
  config = config_lib.Config(
    run_dir='somewhere', dpo=config_lib.DpoConfig(beta=0.1)
  )
  mesh = mesh_lib.make_mesh(config_lib.MeshConfig(replica=1))
  with pytest.raises(config_lib.UsageError, match='--run_dir=somewhere holds'):
    bases.again(config, mesh, {})
  assert tune(whole, 'all', *more, f'--restore={whole}/all') == 2
  told = capsys.readouterr().err
  assert 'The reference of the run with --dpo.beta is' in told
  assert f'{whole}/hf' in told and 'holds other parameters' in told


def test_model_is_read_as_any_other(whole, capsys):
  args = [f'--source={whole}/all', '--mode=export', f'--output={whole}/out']
  assert main.main(['zaya_jax', *args]) == 0
  run, out = (load_lib.load(str(whole / name)) for name in ('all', 'out'))
  tokens = np.arange(12).reshape(2, 6)
  np.testing.assert_allclose(run(tokens), out(tokens), atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize('flags', [['--mesh.replica=2'], ['--mesh.fsdp=2']])
def test_all_parameters_on_a_mesh(whole, flags):
  run = 'all_' + flags[0].strip('-').replace('=', '_')
  assert tune(whole, run, *ALL, '--num_steps=2', *flags) == 0
  assert tune(whole, run, *ALL, *flags) == 0
  mine, theirs = train_rows(whole, run), train_rows(whole, 'all')
  np.testing.assert_allclose(mine[:4], theirs[:4], rtol=2e-3, atol=1e-3)
