# SPDX-License-Identifier: Apache-2.0
"""A saved run comes back as a model that computes and writes text."""

import shutil

import jax
import numpy as np
import pytest

import zaya_jax
from pipelines import tokenizer
from zaya_jax import config as config_lib
from zaya_jax.checkpoint import errors, meta
from zaya_jax.checkpoint.writing import manager
from zaya_jax.model import zaya
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


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  """A run directory with one checkpoint, and the state in it."""
  run_dir = tmp_path_factory.mktemp('run')
  with jax.set_mesh(mesh.make_mesh(CONFIG.mesh)):
    state = jax.jit(state_lib.make_init(CONFIG))()
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
  expected = zaya.bind(CONFIG.model, params, buffers)(tokens)
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
