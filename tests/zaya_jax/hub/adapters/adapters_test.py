# SPDX-License-Identifier: Apache-2.0
"""Runs with --lora.rank from the command line, and what reads them."""

import shutil

import jax
import numpy as np
import pytest
import safetensors.numpy

from tests.support import compiled, tuning
from zaya_jax import config as config_lib
from zaya_jax import main
from zaya_jax.hub import folder as hub_folder
from zaya_jax.hub import leaves as leaves_lib
from zaya_jax.hub import names as hub_names
from zaya_jax.hub.adapters import adapter, bases
from zaya_jax.inference import load as load_lib
from zaya_jax.model import shapes
from zaya_jax.parallel import mesh as mesh_lib
from zaya_jax.train import start
from zaya_jax.train import state as state_lib

LORA = ['--lora.rank=2', '--lora.alpha=3', '--num_steps=4', '--optim.lr=0.05']
FROZEN = ('embed', 'layers/router/fc1', 'layers/attn/conv_grouped')


@pytest.fixture(scope='module', autouse=True)
def compiled_once():
  yield from compiled.once()


@pytest.fixture(scope='module')
def home(tmp_path_factory):
  """A folder with the base, the conversations, and a run of four steps."""
  folder = tuning.home(tmp_path_factory.mktemp('lora'))
  assert tune(folder, 'run') == 0
  return folder


def tune(folder, run, *args, base='hf'):
  return tuning.tune_chats(folder, run, *LORA, *args, base=base)


def run_main(*args):
  return main.main(['zaya_jax', *args])


def test_checkpoint_holds_the_adapter_alone(home):
  model = hub_folder.read_config(str(home / 'hf'))
  lora = config_lib.LoraConfig(rank=2)
  found = tuning.leaves(home / 'run')
  saved = {n: a.shape for n, a in found.items() if n.startswith('params/')}
  wanted = shapes.adapters(model, lora)
  assert saved == {f'params/{path}': shape for path, shape in wanted.items()}
  adapted = sum(a.size for n, a in found.items() if n.startswith('params/'))
  held = sum(a.size for n, a in found.items() if n.startswith('opt_state'))
  assert 2 * adapted <= held <= 2 * adapted + 3  # AdamW, and counters.


def test_balancing_bias_stays(home):
  found = tuning.leaves(home / 'run')['buffers/layers/router/balance_bias']
  name = 'buffers/layers/router/balance_bias'
  base = leaves_lib.find(str(home / 'hf')).leaves[name]
  wanted = [values for _, values in leaves_lib.parts(base, name)]
  np.testing.assert_array_equal(found, wanted)


def test_loaded_model_is_the_sum(home):
  """W + s A B in float64 of the base's file and the checkpoint's arrays."""
  model, factors = load_lib.load(str(home / 'run')), tuning.leaves(home / 'run')
  base = hub_folder.find_leaves(str(home / 'hf'), model.config)['params']
  found = hub_names.flatten(model.params)
  moved = set()
  for path, leaf in base.items():
    wanted = leaf.read(np.float64)
    names = [f'params/{path}/{factor}' for factor in shapes.FACTORS]
    if names[0] in factors:
      a, b = (factors[name].astype(np.float64) for name in names)
      np.testing.assert_allclose(found[path], wanted + 1.5 * a @ b, atol=1e-6)
      assert np.abs(found[path] - (wanted + 3 * a @ b)).max() > 1e-5
      moved.add(path)
    else:
      np.testing.assert_array_equal(found[path], wanted)
  assert {'layers/attn/out', 'layers/experts/down'} < moved
  assert not moved & set(FROZEN)


def test_resumed_run_is_bit_equal(home):
  assert tune(home, 'half', '--num_steps=2', '--optim.schedule_steps=4') == 0
  assert tune(home, 'half', '--optim.schedule_steps=4') == 0
  whole, half = tuning.leaves(home / 'run'), tuning.leaves(home / 'half')
  assert whole.keys() == half.keys()
  for name in whole:
    np.testing.assert_array_equal(whole[name], half[name], name)


def test_run_goes_on_with_an_adapter(home):
  """Its factors, and the base that they belong to."""
  model = hub_folder.read_config(str(home / 'hf'))
  config = config_lib.Config(
    restore=str(home / 'run'),
    model=model,
    lora=config_lib.LoraConfig(rank=2, alpha=3.0),
  )
  mesh = mesh_lib.make_mesh(config_lib.MeshConfig(replica=1))
  state = start._initialize(state_lib.make_init(config), mesh)
  like = {'params': state.params, 'buffers': state.buffers}
  begun, saved = bases.begin(config, mesh, like), tuning.leaves(home / 'run')
  for path, factor in hub_names.flatten(begun.factors).items():
    np.testing.assert_array_equal(factor, saved[f'params/{path}'])
  base = load_lib.load(str(home / 'hf'))
  jax.tree.map(np.testing.assert_array_equal, begun.params, base.params)
  assert begun.base.source == str(home / 'hf')


@pytest.mark.parametrize(
  'run, args, rule',
  [
    ('run', ['--lora.rank=3'], '--lora.rank: 2 -> 3'),
    ('run', ['--lora.rank=0'], '--lora.rank: 2 -> 0'),
    ('new', ['--lora.rank=3', 'base=run'], '--lora.rank=2 --lora.alpha=3'),
    ('new', ['--lora.rank=0', 'base=run'], 'holds an adapter'),
    ('new', ['base='], '--lora.rank=2 adapts a model'),
    ('new', ['--lora.targets=router'], 'must name some of attention, experts'),
  ],
)
def test_what_does_not_fit_is_refused(home, capsys, run, args, rule):
  base = [a.removeprefix('base=') for a in args if a.startswith('base=')]
  args = [a for a in args if a.startswith('--')]
  named = [] if base == [''] else [f'--restore={home}/{(base or ["hf"])[0]}']
  code = run_main(
    f'--run_dir={home}/{run}',
    *(*named, *LORA, *tuning.SMALL, '--num_steps=8', *args),
    f'--data.input={home}/chats.jsonl',
  )
  assert code == 2
  assert rule in capsys.readouterr().err


def other_base(home, name):
  """The same folder with one value changed."""
  folder = shutil.copytree(home / 'hf', home / name)
  tensors = safetensors.numpy.load_file(folder / 'model.safetensors')
  tensors['model.norm.weight'][0] += 2**-10
  safetensors.numpy.save_file(tensors, folder / 'model.safetensors')
  return folder


def test_other_base_is_refused(home, capsys):
  other = other_base(home, 'other')
  export = ['--mode=export', f'--output={home}/x']
  for mode in (['--mode=eval'], ['--mode=chat'], export, []):
    args = [f'--restore={other}', f'--run_dir={home}/run', *mode]
    if not mode:
      args += [*LORA, *tuning.SMALL, '--num_steps=8']
      args += [f'--data.input={home}/chats.jsonl']
    assert run_main(*args) == 2
    told = capsys.readouterr().err
    assert (
      f'The base of the adapter is {home}/hf' in told and str(other) in told
    )
  assert not (home / 'x').exists()


def test_base_may_move_and_change_its_format(home, capsys):
  """Imported, exported as float32: the values are the same."""
  imported = ['--mode=import', f'--source={home}/hf', f'--output={home}/base']
  assert run_main(*imported) == 0
  found = [
    adapter.identity(leaves_lib.find(str(home / name)))
    for name in ('hf', 'base')
  ]
  assert found[0] == found[1]
  moved = shutil.copytree(home / 'run', home / 'moved')
  with_base = load_lib.load(str(moved), str(home / 'base'))
  tree = load_lib.load(str(home / 'run')).params
  jax.tree.map(np.testing.assert_array_equal, with_base.params, tree)


def test_export_merges(home):
  out = home / 'merged'
  args = ['--mode=export', f'--source={home}/run', f'--output={out}']
  assert run_main(*args) == 0
  run, folder = load_lib.load(str(home / 'run')), load_lib.load(str(out))
  jax.tree.map(np.testing.assert_array_equal, run.params, folder.params)
  tokens = np.arange(12).reshape(2, 6)
  plain = load_lib.load(str(home / 'hf'))
  assert np.abs(folder(tokens) - plain(tokens)).max() > 1e-3
