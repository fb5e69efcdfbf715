# SPDX-License-Identifier: Apache-2.0
"""An adapter beside few bits: tokens of the sums, without all sums at once."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipelines import tokenizer
from tests.support import tiny, whole
from zaya_jax import config as config_lib
from zaya_jax.hub import packing
from zaya_jax.hub.quantized import choice
from zaya_jax.inference import model as model_lib
from zaya_jax.inference import score
from zaya_jax.inference.adapted import moved, preferred
from zaya_jax.inference.decoding import network, rereading
from zaya_jax.model import lora
from zaya_jax.parallel import mesh as mesh_lib
from zaya_jax.train import traced

BYTES = tokenizer.load('bytes')
LORA = config_lib.LoraConfig(rank=2, alpha=3.0)
PROMPTS = [np.array([257, 65, 66]), np.array([257, 67, 68, 69, 70])]
SAMPLED = {'temperature': 0.8, 'top_p': 0.9, 'seed': 3}


def adapted(**changes):
  """A model with an adapter beside a base of few bits, on the host."""
  shape = {'num_layers': 2, 'vocab_size': 264, 'tie_embeddings': False}
  config = tiny.config(**shape, **changes)
  params, buffers = tiny.arrays(config)
  which = choice.make('int4')

  def one(path, w):
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    if not (kind := which.of(name)):
      return np.asarray(w)
    stack = packing.Stack(w.shape[0])
    for n, layer in enumerate(np.asarray(w)):
      stack.put((n,), packing.rounded((n,), layer, kind))
    return stack.done()

  base = jax.tree_util.tree_map_with_path(one, params)
  adapter = jax.tree.map(np.asarray, tiny.adapter(config, LORA))
  return config, lora.join(base, adapter, LORA.scale), buffers


@functools.cache
def models():
  """The model of `adapted`, and the one of its sums, as it was decoded once."""
  config, params, buffers = adapted()
  known = {'config': config, 'buffers': buffers, 'tokenizer': BYTES}
  sums = whole.summed(whole.widened(params, np.float32))
  mine = model_lib.Model(params=params, **known)
  return mine, model_lib.Model(params=sums, **known)


def tokens(model, **how):
  return np.transpose(list(model.tokens(PROMPTS, 8, **how)))


@pytest.mark.parametrize('how', [{}, SAMPLED, {'no_repeat': 1}])
def test_tokens_are_those_of_the_sums(how):
  mine, sums = models()
  found = tokens(mine, **how)
  assert 'decoder' not in vars(mine)  # It would lay out the sums.
  np.testing.assert_array_equal(found, tokens(sums, **how))
  assert len(np.unique(found)) > 4
  if how != {}:
    assert (found != tokens(mine)).any()


def test_another_adapter_says_something_else():
  mine, _ = models()
  base = {k: v for k, v in mine.params.items() if k != lora.KEY}
  factors = jax.tree.map(lambda a: -a, mine.params[lora.KEY])
  other = dataclasses.replace(mine, params={**base, lora.KEY: factors})
  scale = jax.tree.map(lambda a: 0 * a, mine.params[lora.KEY])
  none = dataclasses.replace(mine, params={**base, lora.KEY: scale})
  assert (tokens(none) != tokens(mine)).any()
  # -A @ -B is A @ B.
  np.testing.assert_array_equal(tokens(other), tokens(mine))


# Six layers, whose matrices are most of all.
WIDE = {
  'num_layers': 6, 'd_model': 64, 'd_expert': 128, 'num_experts': 8,
  'vocab_size': 64, 'dtype': 'bfloat16', 'remat': 'cheap',
}  # fmt: skip
LENGTH = 32


def run_config(scan_layers, **changes):
  settings = {
    'mode': 'train',
    'restore': 'base',
    'quant': 'int4',
    'model': tiny.config(**WIDE, scan_layers=scan_layers),
    'data': config_lib.DataConfig(seq_len=LENGTH, batch_size=1),
    'optim': config_lib.OptimConfig(accumulation=1),
    'lora': LORA,
    'mesh': config_lib.MeshConfig(replica=1),
  }
  return config_lib.Config(**{**settings, **changes})


def needs(program, beside=()):
  """Bytes of a compiled program, of what it is given, and of what is beside."""
  size = program.memory_analysis()
  held = size.argument_size_in_bytes + size.output_size_in_bytes
  held += sum(math.prod(a.shape) * a.dtype.itemsize for a in beside)
  return held - size.alias_size_in_bytes + size.temp_size_in_bytes


def step(config):
  """(bytes of the training step; mesh, state and batch, without values)."""
  mesh = mesh_lib.make_mesh(config.mesh, jax.devices()[:1])
  taken = needs(traced.trace(config, mesh).lower().compile())
  return taken, mesh, *traced.arguments(config, mesh)


@pytest.fixture(scope='module')
def of_training():
  return step(run_config('true'))


def evaluated(which, config, batch, mesh, weights, buffers):
  """The program of an evaluation, compiled as a run does."""
  made = {
    'loss': lambda: score.make_eval_step(config.model),
    'moved': lambda: moved.make_step(config),
    'preferred': lambda: preferred.make_eval_step(
      dataclasses.replace(config, dpo=config_lib.DpoConfig(beta=0.1))
    ),
  }[which]()
  if which == 'preferred':
    weights = weights, None
  with jax.set_mesh(mesh):
    return jax.jit(made).trace(weights, buffers, batch).lower().compile()


@pytest.mark.parametrize('which', ['loss', 'moved', 'preferred'])
def test_evaluation_needs_no_more_than_training(of_training, which):
  most, mesh, state, batch = of_training
  config = run_config('false')
  model = lora.in_a_loop(config.model)
  config = dataclasses.replace(config, model=model)
  weights = {**state.base, lora.KEY: state.params}
  program = evaluated(which, config, batch, mesh, weights, state.buffers)
  moments = jax.tree.leaves(state.opt_state)
  assert needs(program, moments) < most


def test_layers_that_are_written_out_would_need_more(of_training):
  most, mesh, state, batch = of_training
  weights = {**state.base, lora.KEY: state.params}
  arrays = batch, mesh, weights, state.buffers
  program = evaluated('moved', run_config('false'), *arrays)
  assert needs(program, jax.tree.leaves(state.opt_state)) > most


def off_mesh(tree):
  return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), tree)


def test_sample_needs_no_more_than_training(of_training):
  most, _, state, _ = of_training
  config = run_config('false')
  weights = {**state.base, lora.KEY: state.params}
  tokens = {
    'tokens': jax.ShapeDtypeStruct((1, LENGTH), jnp.int32),
    'last': jnp.int32(2),
    'key': jax.random.key(0),
  }
  program = (
    jax.jit(rereading.next_token, static_argnums=(0, 1, 2))
    .lower(
      *(lora.in_a_loop(config.model), 64, 0),
      *off_mesh((weights, state.buffers)),
      *(jnp.zeros(1, jnp.int32), tokens, {}),
    )
    .compile()
  )
  moments = jax.tree.leaves(state.opt_state)
  assert needs(program, moments) < most
  # Weights of all layers laid out, as the sample of a run was made once.
  wide = run_config('true', quant='none')
  base = traced.arguments(wide, of_training[1])[0].base
  laid_out = jax.jit(network.prepare, static_argnums=0).lower(
    wide.model, *off_mesh((base, state.buffers))
  )
  kept = [*moments, *jax.tree.leaves((state.base, state.params))]
  assert needs(laid_out.compile(), kept) > 1.5 * most
