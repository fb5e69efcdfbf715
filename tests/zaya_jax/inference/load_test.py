# SPDX-License-Identifier: Apache-2.0
"""A saved run comes back as a model that computes and writes text."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest

import zaya_jax
from pipelines import tokenizer
from tests.support import folders, runs, tiny
from zaya_jax import config as config_lib
from zaya_jax import main
from zaya_jax.checkpoint import errors, meta
from zaya_jax.checkpoint.writing import manager
from zaya_jax.parallel import mesh
from zaya_jax.train import state as state_lib

CONFIG = config_lib.Config(
  model=config_lib.ModelConfig(
    num_layers=1,
    d_model=8,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    num_experts=2,
    d_expert=8,
    d_router=2,
  )
)
# What each mode needs besides a model.
WORDS = {
  'generate': ['--prompt=A'],
  'eval': ['--eval.text={home}/text.txt'],
  'report': ['--report.router', '--eval.text={home}/text.txt'],
  'export': ['--output={home}/out'],
}


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  """A run directory with one checkpoint, and the state in it."""
  run_dir = tmp_path_factory.mktemp('run')
  # The shapes of `init`; compiling it would take seconds.
  shapes = jax.eval_shape(state_lib.make_init(CONFIG))
  state = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), shapes)
  params, buffers = tiny.arrays(CONFIG.model)
  state = dataclasses.replace(state, params=params, buffers=buffers)
  device_mesh = mesh.make_mesh(CONFIG.mesh)
  state = jax.device_put(state, mesh.sharding(device_mesh))
  about = meta.describe(
    CONFIG,
    flags=CONFIG.to_flagfile(),
    tokenizer_sha256=tokenizer.load('bytes').sha256,
    dataset_sha256='',
    tokens=0,
    metrics={},
  )
  with manager.Manager(str(run_dir), CONFIG.checkpoint) as checkpoints:
    checkpoints.save(3, state, data_index=0, meta=about)
  return run_dir, state


@pytest.mark.parametrize('where', ['', 'checkpoints', 'checkpoints/3'])
def test_model_of_a_run_gives_the_logits_of_its_state(saved, where):
  run_dir, state = saved
  model = zaya_jax.load(str(run_dir / where))
  assert model.config == CONFIG.model
  tokens = np.arange(6).reshape(1, 6)
  params, buffers = mesh.off_mesh((state.params, state.buffers))
  expected = tiny.logits(CONFIG.model, params, buffers, tokens)
  np.testing.assert_allclose(model(tokens), expected, rtol=1e-5, atol=1e-6)


def test_model_of_a_run_writes_text(saved):
  model = zaya_jax.load(str(saved[0]))
  pieces = []
  (text,) = model.generate('ab', max_tokens=4, on_text=pieces.append)
  assert ''.join(pieces) == text


@pytest.mark.parametrize('tokens', [[1, 2], [[0.5]], [[[1]]]])
def test_tokens_that_are_no_batch_of_ids_are_refused(saved, tokens):
  with pytest.raises(ValueError, match='must be .B, L. int, got'):
    zaya_jax.load(str(saved[0]))(tokens)


def test_no_prompts_give_no_texts(saved):
  assert zaya_jax.load(str(saved[0])).generate([]) == []


def test_tokenizer_of_another_run_is_refused(saved, tmp_path):
  shutil.copytree(saved[0], tmp_path / 'run')
  tokenizer.train_bpe(['text'], 259).save(tmp_path / 'run')
  with pytest.raises(errors.CheckpointError, match='is not the tokenizer'):
    zaya_jax.load(str(tmp_path / 'run'))


def test_no_folder_is_one_sentence(tmp_path):
  with pytest.raises(config_lib.UsageError, match='There is no folder'):
    zaya_jax.load(str(tmp_path / 'nothing'))


@pytest.fixture(scope='module')
def broken(tmp_path_factory):
  """A run with one NaN, and a Hugging Face folder with one row of -Inf."""
  home = tmp_path_factory.mktemp('broken')
  shape = folders.model(attention_bias=False, head_bias=False)
  values = folders.tensors(shape, 'native')
  name = 'model.layers.2.mlp.gate.balancing_biases'
  values[name] = np.full_like(values[name], -np.inf)
  folders.write(home / 'hf', 'native', values, shape)
  params, buffers = tiny.arrays(shape)
  attn = params['layers']['attn']
  attn['out'] = attn['out'].at[1, 0, 0].set(np.nan)
  runs.save(home / 'run', shape, arrays=lambda _: (params, buffers))
  (home / 'text.txt').write_text('A text to read.')
  return home


@pytest.mark.parametrize(
  'source, name',
  [
    ('run/checkpoints/70', 'params/layers/attn/out'),
    ('hf', 'buffers/layers/router/balance_bias'),
  ],
)
@pytest.mark.parametrize('mode', WORDS)
def test_nan_and_inf_are_refused_by_name(broken, capsys, mode, source, name):
  given = source.split('/')[0]  # Of a run, the newest checkpoint.
  words = [f'--mode={mode}', f'--source={broken}/{given}', *WORDS[mode]]
  before = sorted(broken.rglob('*'))
  code = main.main(['zaya_jax', *(w.format(home=broken) for w in words)])
  out, err = capsys.readouterr()
  assert code == 3 and (out == '' or mode == 'export')  # It has notes.
  assert err.startswith('zaya_jax: error: ') and err.count('\n') == 1
  assert f'{broken}/{source} holds NaN or Inf in {name};' in err
  assert sorted(broken.rglob('*')) == before
