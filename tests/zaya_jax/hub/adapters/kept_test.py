# SPDX-License-Identifier: Apache-2.0
"""Adapters of a base of few bits against those of the same base, wide."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from ops.experts import packed
from tests.support import quick, tiny, whole
from zaya_jax import config as config_lib
from zaya_jax.hub import packing
from zaya_jax.model import lora, shapes, zaya
from zaya_jax.train import gradients

MODEL = tiny.config(remat='cheap', scan_layers='false')
LORA = config_lib.LoraConfig(rank=2, alpha=3.0)
UP = 'layers/experts/gate_up'


def narrow(base, kind, targets=('experts', 'attention')):
  """The base with few bits, as a run keeps it on the host."""
  flat = traverse_util.flatten_dict(jax.tree.map(np.asarray, base), sep='/')
  for path, w in flat.items():
    if one := shapes.kind_of(path, kind, targets):
      stack = packing.Stack(w.shape[0])
      parts = enumerate(w) if path.startswith('layers/') else [(None, w)]
      for n, layer in parts:
        index = () if n is None else (n,)
        stack.put(index, packing.rounded(index, layer, one))
      flat[path] = stack.done()
  return traverse_util.unflatten_dict(flat, sep='/')


@functools.cache
def case():
  """(base, buffers, an adapter none of whose factors is 0, a batch)."""
  base, buffers = tiny.arrays(MODEL)
  return base, buffers, tiny.adapter(MODEL, LORA), tiny.batch(MODEL, 2, 16)


@functools.partial(jax.jit, static_argnums=0)
def step(config, adapter, buffers, batch, base):
  return gradients.each_and_sum(config, adapter, buffers, batch, base)[:2]


def config(model):
  return config_lib.Config(
    model=model,
    data=config_lib.DataConfig(seq_len=16, batch_size=2),
    optim=config_lib.OptimConfig(accumulation=1),
    lora=LORA,
  )


def found(base, **changes):
  _, buffers, adapter, batch = case()
  model = tiny.config(**{'remat': 'cheap', 'scan_layers': 'false', **changes})
  tree = jax.tree.map(jnp.asarray, (adapter, buffers, batch, base))
  return jax.tree.map(np.asarray, step(config(model), *tree))


def largest(a, b):
  """The largest difference of two trees, as a share of the largest element."""
  apart = jax.tree.map(lambda x, y: np.abs(x - y).max(), a, b)
  size = jax.tree.map(lambda x: np.abs(x).max(), a)
  return max(jax.tree.leaves(jax.tree.map(lambda x, y: x / y, apart, size)))


@pytest.mark.long
@pytest.mark.parametrize('kind', ['int8', 'int4'])
def test_the_loss_in_bfloat16_is_near(kind):
  """XLA on a CPU may leave a rounding out, and a token then goes elsewhere."""
  few = narrow(case()[0], kind)
  wide = whole.widened(few, np.float32)
  mine, theirs = (found(w, dtype='bfloat16')[0] for w in (few, wide))
  assert abs(mine - theirs) < 0.05 * theirs


@pytest.mark.parametrize('kind', quick.only(['int8', 'int4'], 'int4'))
@pytest.mark.parametrize(
  'changes',
  quick.only([{}, {'remat': 'block', 'scan_layers': 'true'}], {}),
)
def test_gradients_are_those_of_the_rounded_base_made_wide(kind, changes):
  few = narrow(case()[0], kind)
  wide = whole.widened(few, np.float32)
  mine, theirs = found(few, **changes), found(wide, **changes)
  assert mine[0] == theirs[0]
  # One program fuses what another does not.
  assert largest(mine, theirs) < 2e-6
  # The base as it was, and one whose first scale is another, are told apart.
  assert largest(mine, found(case()[0], **changes)) > 1e-3
  scale = few['layers']['experts']['gate_up'].scale.copy()
  scale[0, 0] *= 2
  flat = traverse_util.flatten_dict(few, sep='/')
  flat[UP] = packed.Packed(values=flat[UP].values, scale=scale)
  other = traverse_util.unflatten_dict(flat, sep='/')
  assert largest(mine, found(other, **changes)) > 1e-3


@pytest.mark.long
def test_embedding_may_have_8_bits():
  few = narrow(case()[0], 'int4', ('embedding', 'experts'))
  assert isinstance(few['embed'], packed.Packed)
  wide = whole.widened(few, np.float32)
  assert largest(found(few), found(wide)) < 2e-6


@pytest.mark.parametrize('kind', quick.only(['int8', 'int4'], 'int4'))
def test_backward_pass_finds_the_numbers_and_widens_anew(kind):
  """It keeps no wide matrix of the experts, and no part of their numbers."""
  model = tiny.config(
    remat='cheap', scan_layers='true', d_model=48, d_expert=64, num_experts=2
  )
  base, buffers = tiny.arrays(model)
  few = jax.tree.map(jnp.asarray, narrow(base, kind))
  adapter = lora.init(model, LORA, jax.random.key(0))
  tokens = tiny.batch(model, 2, 16)['tokens']

  def total(adapter):
    params = lora.join(few, adapter, LORA.scale)
    return zaya.bind(model, params, buffers).features(tokens).x.sum()

  pull = jax.jit(lambda adapter: jax.vjp(total, adapter)[1])(adapter)
  kept = [leaf for leaf in jax.tree.leaves(pull) if leaf.dtype.itemsize == 1]
  numbers = [
    leaf.values for leaf in jax.tree.leaves(few, is_leaf=_is_packed)
    if _is_packed(leaf)
  ]  # fmt: skip
  assert sum(a.nbytes for a in kept if a.dtype != bool) <= sum(
    a.nbytes for a in numbers
  )
  matrix = shapes.parameters(model)[UP][-2:]
  wide = [leaf for leaf in jax.tree.leaves(pull) if leaf.dtype.itemsize > 1]
  assert not [a for a in wide if a.shape[-2:] in (matrix, matrix[::-1])]


def _is_packed(leaf):
  return isinstance(leaf, packed.Packed)
