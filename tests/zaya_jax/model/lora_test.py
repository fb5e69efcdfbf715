# SPDX-License-Identifier: Apache-2.0
"""Adapters against matrices that were summed by hand."""

import dataclasses

import jax
import ml_dtypes
import numpy as np
import pytest

from tests.support import quick, tiny
from tests.support import whole as whole_lib
from zaya_jax import config as config_lib
from zaya_jax.model import lora, shapes, zaya
from zaya_jax.train import gradients

MODEL = tiny.config(remat='cheap', scan_layers='false')
LORA = config_lib.LoraConfig(rank=2, alpha=3.0)
Q, UP = 'layers/attn/q', 'layers/experts/gate_up'


def leaf(tree, path):
  for key in path.split('/'):
    tree = tree[key]
  return np.asarray(tree, np.float64)


@pytest.fixture(scope='module')
def case():
  """(base, buffers, an adapter none of whose factors is 0, a batch)."""
  base, buffers = tiny.arrays(MODEL)
  return base, buffers, tiny.adapter(MODEL, LORA), tiny.batch(MODEL, 2, 16)


def config(**changes):
  return config_lib.Config(
    model=MODEL,
    data=config_lib.DataConfig(seq_len=16, batch_size=2),
    optim=config_lib.OptimConfig(accumulation=1),
    **changes,
  )


@pytest.fixture(scope='module')
def found(case):
  """(loss, gradients) of the adapter, and of the summed matrices."""
  base, buffers, adapter, batch = case
  of = jax.jit(gradients.each_and_sum, static_argnums=0)
  hers = of(config(lora=LORA), adapter, buffers, batch, base)[:2]
  whole = whole_lib.summed(lora.join(base, adapter, LORA.scale))
  return hers, of(config(), whole, buffers, batch)[:2]


def test_init_is_peft_s():
  found = lora.init(MODEL, LORA, jax.random.key(0))
  shape = shapes.parameters(MODEL)[UP]
  a, b = leaf(found, f'{UP}/lora_a'), leaf(found, f'{UP}/lora_b')
  assert a.shape == (*shape[:3], 2) and b.shape == (*shape[:2], 2, shape[3])
  assert not b.any()
  assert 0.8 < np.abs(a).max() * np.sqrt(shape[2]) <= 1
  assert len(np.unique(a)) == a.size  # Each expert has its own.
  assert {key: leaf.shape for key, leaf in _flat(found).items()} == (
    shapes.adapters(MODEL, LORA)
  )


def _flat(tree):
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {'/'.join(k.key for k in path): a for path, a in leaves}


def test_targets_decide_what_is_adapted():
  for target, other in (('attention', 'experts'), ('experts', 'attn')):
    only = dataclasses.replace(LORA, targets=(target,))
    paths = shapes.adapters(MODEL, only)
    assert paths and not any(f'/{other}/' in path for path in paths)


def summed(case, path, scale=1.5):
  base, _, adapter, _ = case
  a, b = (leaf(adapter, f'{path}/{factor}') for factor in shapes.FACTORS)
  return leaf(base, path) + scale * np.einsum('...dr,...rf->...df', a, b)


@pytest.mark.parametrize('path', [Q, UP])
def test_sum_is_the_closed_form(case, path):
  base, _, adapter, _ = case
  whole = whole_lib.summed(lora.join(base, adapter, LORA.scale))
  error = np.abs(leaf(whole, path) - summed(case, path)).max()
  assert error < 1e-6
  assert np.abs(leaf(whole, path) - summed(case, path, 1.0)).max() > 1e-2
  norm = 'layers/attn_norm'
  assert (leaf(whole, norm) == leaf(base, norm)).all()


def test_numpy_sum_of_bfloat16_is_rounded_once(case):
  rng = np.random.default_rng(0)
  w = rng.normal(size=(3, 4)).astype(ml_dtypes.bfloat16)
  a, b = rng.normal(size=(2, 3, 4)).astype(np.float32)
  exact = w.astype(np.float64) + a[:, :2].astype(np.float64) @ b[:2]
  assert lora.add(w, a[:, :2], b[:2]).dtype == w.dtype
  np.testing.assert_array_equal(
    lora.add(w, a[:, :2], b[:2]), exact.astype(np.float32).astype(w.dtype)
  )


def test_loss_is_that_of_the_summed_matrices(found):
  (mine, _), (theirs, _) = found
  assert abs(mine - theirs) < 1e-6


@pytest.mark.parametrize('path', [Q, UP])
def test_gradients_are_those_of_the_sum(case, found, path):
  """dA = s dW B^T and dB = s A^T dW, in float64 of the gradient of W."""
  (_, mine), (_, theirs) = found
  a, b = (leaf(case[2], f'{path}/{factor}') for factor in shapes.FACTORS)
  d_w = leaf(theirs, path)
  d_a, d_b = 1.5 * d_w @ b.swapaxes(-1, -2), 1.5 * a.swapaxes(-1, -2) @ d_w
  for factor, exact in zip(shapes.FACTORS, (d_a, d_b), strict=True):
    got = leaf(mine, f'{path}/{factor}')
    assert np.abs(got - exact).max() < 2e-6 * np.abs(exact).max() + 1e-8
    assert np.abs(got - exact / 1.5).max() > 0.1 * np.abs(exact).max()


def test_only_the_adapter_has_gradients(case, found):
  (_, mine), _ = found
  assert jax.tree.structure(mine) == jax.tree.structure(case[2])


@pytest.mark.parametrize('remat', quick.only(['cheap', 'none'], 'cheap'))
def test_backward_pass_makes_the_sums_anew(remat):
  """Of the experts it finds the base saved; without --model.remat the sums."""
  model = tiny.config(
    remat=remat, scan_layers='false', d_model=48, d_expert=64, num_experts=2
  )
  base, buffers = tiny.arrays(model)
  adapter = lora.init(model, LORA, jax.random.key(0))
  adapter = jax.tree.map(lambda a: a + 0.1, adapter)
  tokens = tiny.batch(model, 2, 16)['tokens']

  def total(adapter):
    params = lora.join(base, adapter, LORA.scale)
    return zaya.bind(model, params, buffers).features(tokens).x.sum()

  pull = jax.jit(lambda adapter: jax.vjp(total, adapter)[1])(adapter)
  whole = whole_lib.summed(lora.join(base, adapter, LORA.scale))
  wanted = leaf(base if remat == 'cheap' else whole, UP)
  saved = [np.asarray(x) for x in jax.tree.leaves(pull)]
  saved = [x for x in saved if x.shape == wanted.shape[1:]]
  assert len(saved) == model.num_layers
  distance = lambda x: min(np.abs(x - w).max() for w in wanted)
  assert max(map(distance, saved)) < 1e-6
