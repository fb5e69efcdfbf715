# SPDX-License-Identifier: Apache-2.0
"""Adapters of a base of few bits, from the command line."""

import json
import shutil

import jax
import numpy as np
import pytest

from tests.support import compiled, tuning
from zaya_jax import config as config_lib
from zaya_jax import main
from zaya_jax.checkpoint import meta
from zaya_jax.checkpoint.reading import finder
from zaya_jax.hub import folder as hub_folder
from zaya_jax.hub import leaves as leaves_lib
from zaya_jax.hub import names as hub_names
from zaya_jax.hub.adapters import adapter, bases
from zaya_jax.hub.quantized import choice, rounding
from zaya_jax.inference import load as load_lib
from zaya_jax.model import packed, shapes
from zaya_jax.parallel import mesh as mesh_lib
from zaya_jax.train import start
from zaya_jax.train import state as state_lib

FLAGS = ['--lora.rank=2', '--lora.alpha=4', '--quant=int4', '--optim.lr=0.03']


@pytest.fixture(scope='module', autouse=True)
def compiled_once():
  yield from compiled.once()


@pytest.fixture(scope='module')
def home(tmp_path_factory):
  """A folder with the base, the conversations, and a run of 24 steps."""
  folder = tuning.home(tmp_path_factory.mktemp('qlora'))
  assert tune(folder, 'run', '--num_steps=24', '--log.every=1') == 0
  return folder


def tune(folder, run, *args, base='hf'):
  return tuning.tune_chats(folder, run, *FLAGS, *args, base=base)


def run_main(*args):
  return main.main(['zaya_jax', *args])


def test_loss_falls(home):
  lines = (home / 'run' / 'metrics.jsonl').read_text().splitlines()
  rows = [json.loads(line) for line in lines]
  losses = [row['train/loss'] for row in rows if 'train/loss' in row]
  assert losses[-1] < losses[0] - 0.1
  log = (home / 'run' / 'log.txt').read_text()
  assert 'rounded to int4 (experts, attention)' in log
  assert 'bits each' in log


def test_checkpoint_holds_the_adapter_and_how_its_base_was_rounded(home):
  found = tuning.leaves(home / 'run')
  saved = {n: a.shape for n, a in found.items() if n.startswith('params/')}
  model = hub_folder.read_config(str(home / 'hf'))
  wanted = shapes.adapters(model, config_lib.LoraConfig(rank=2))
  assert saved == {f'params/{path}': shape for path, shape in wanted.items()}
  base = adapter.of(meta.read(finder.resolve(str(home / 'run'))))
  assert base.choice == choice.Choice('int4', ('experts', 'attention'))
  whole = leaves_lib.find(str(home / 'hf'))
  assert base.fingerprint == adapter.identity(whole)  # Not of what is rounded.


def test_loaded_model_is_the_sum_with_the_rounded_base(home):
  """Q(W) + s A B, of the base's file and the checkpoint's arrays."""
  model, factors = load_lib.load(str(home / 'run')), tuning.leaves(home / 'run')
  base = hub_folder.find_leaves(str(home / 'hf'), model.config)['params']
  found, apart = hub_names.flatten(model.params), 0
  for path, leaf in base.items():
    w = leaf.read(np.float32)
    names = [f'params/{path}/{factor}' for factor in shapes.FACTORS]
    if names[0] not in factors:
      np.testing.assert_array_equal(found[path], w)
      continue
    a, b = (factors[name].astype(np.float64) for name in names)
    pair = rounding.pack(w.swapaxes(-1, -2), 'int4')
    wanted = rounding.unpack(*pair).swapaxes(-1, -2) + 2 * a @ b
    np.testing.assert_allclose(found[path], wanted, atol=1e-6)
    apart = max(apart, np.abs(found[path] - (w + 2 * a @ b)).max())
  assert apart > 1e-3  # Of the base that was not rounded.


def test_resumed_run_is_bit_equal(home):
  for run, steps in (('whole', 4), ('half', 2), ('half', 4)):
    ends = [f'--num_steps={steps}', '--optim.schedule_steps=4']
    assert tune(home, run, *ends) == 0
  whole, half = tuning.leaves(home / 'whole'), tuning.leaves(home / 'half')
  assert whole.keys() == half.keys()
  for name in whole:
    np.testing.assert_array_equal(whole[name], half[name], name)


@pytest.mark.parametrize(
  'run, args, rule',
  [
    ('run', ['--quant=int8'], '--quant: int4 -> int8'),
    ('run', ['--quant=none'], '--quant: int4 -> none'),
    ('run', ['--quant.targets=experts'], "'attention'] -> ['experts']"),
    ('new', ['--quant=none', 'base=run'], 'with --quant=int4 --quant.targets='),
    ('new', ['--lora.rank=0'], 'without --lora.rank trains all parameters'),
    ('new', ['--mesh.fsdp=2'], '--mesh.fsdp=2 divides matrices'),
  ],
)
def test_what_does_not_fit_is_refused(home, capsys, run, args, rule):
  base = [a.removeprefix('base=') for a in args if a.startswith('base=')]
  args = [a for a in args if a.startswith('--')]
  assert tune(home, run, '--num_steps=30', *args, base=(base or ['hf'])[0]) == 2
  assert rule in capsys.readouterr().err


def test_export_says_that_the_base_was_rounded(home, capsys):
  args = ['--mode=export', f'--source={home}/run']
  assert run_main(*args, f'--output={home}/merged') == 0
  said = 'base of the adapter was rounded to int4 (experts, attention)'
  assert said in capsys.readouterr().out
  assert said in (home / 'merged' / 'README.md').read_text()
  run, out = (load_lib.load(str(home / name)) for name in ('run', 'merged'))
  jax.tree.map(np.testing.assert_array_equal, run.params, out.params)
  peft = [f'--output={home}/peft', '--export.layout=peft']
  assert run_main(*args, *peft) == 0
  assert 'rounded to int4' in capsys.readouterr().out


def stored(home, base):
  """The base of a run on the devices, and its fingerprint."""
  model = hub_folder.read_config(str(home / base))
  config = config_lib.Config(
    restore=str(home / base), model=model, lora=config_lib.LoraConfig(rank=2)
  )
  mesh = mesh_lib.make_mesh(config_lib.MeshConfig(replica=1))
  state = start._initialize(state_lib.make_init(config), mesh)
  like = {'params': state.params, 'buffers': state.buffers}
  return bases.begin(config, mesh, like)


def test_folder_of_few_bits_stays_packed(home):
  args = ['--mode=export', f'--source={home}/hf', '--quant=int4']
  assert run_main(*args, f'--output={home}/few') == 0
  begun = stored(home, 'few')
  experts = begun.params['layers']['experts']['down']
  assert packed.is_packed(experts)
  theirs = load_lib.load(str(home / 'few')).params['layers']['experts']['down']
  np.testing.assert_array_equal(experts.values, theirs.values)
  np.testing.assert_array_equal(experts.scale, theirs.scale)


@pytest.mark.long
def test_folder_of_few_bits_is_trained_on(home, capsys):
  args = ['--mode=export', f'--source={home}/hf', '--quant=int4']
  assert run_main(*args, f'--output={home}/few_2') == 0
  few = ['--quant=none', '--num_steps=2']
  assert tune(home, 'of_few', *few, base='few_2') == 0
  assert tune(home, 'twice', '--num_steps=2', base='few_2') == 2
  assert 'is quantized already' in capsys.readouterr().err
  shutil.copytree(home / 'of_few', home / 'moved')
  assert run_main(
    '--mode=generate', f'--source={home}/moved', '--prompt=a',
    '--generate.max_tokens=2',
  ) == 0  # fmt: skip
