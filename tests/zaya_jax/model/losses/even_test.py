# SPDX-License-Identifier: Apache-2.0
"""The auxiliary loss against its closed form and float64 NumPy."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import meshes, tiny
from tests.support.reference import zaya_numpy
from zaya_jax.model import router
from zaya_jax.model.losses import even
from zaya_jax.parallel import batch as batch_lib
from zaya_jax.parallel import mesh as mesh_lib
from zaya_jax.train import gradients

MODEL = tiny.config()
WEIGHT = 0.7


def config_of(rule='loss', weight=WEIGHT, model=MODEL, **sizes):
  config = meshes.config_of(balance=rule, **sizes)
  optim = dataclasses.replace(config.optim, balance_loss=weight)
  return dataclasses.replace(config, model=model, optim=optim)


def batch(rows=8, length=12):
  """With padding behind the last tokens of each row."""
  made = dict(tiny.batch(MODEL, rows=rows, length=length))
  made['segment_ids'] = np.where(np.arange(length) < length - 3, 1, 0)
  made['segment_ids'] = np.tile(made['segment_ids'], (rows, 1)).astype(np.int32)
  made['weights'] = made['segment_ids'].astype(np.float32)
  return made


def found(config):
  """Loss, gradients, load and what is told, as the code now is."""
  state, mesh = meshes.first_state(config), meshes.mesh_of(config)
  run = jax.jit(functools.partial(gradients.each_and_sum, config))
  with jax.set_mesh(mesh):
    rows = batch_lib.put_batch(mesh, batch())
    loss, grads, load, _, told = run(state.params, state.buffers, rows)
    return jax.device_get((loss, grads, load, told))


plain = functools.cache(lambda: found(config_of('adam')))


def specified(params, share_NE=None, rows=slice(None)):
  """The mean of a token and layer, and the shares, by float64 NumPy."""
  seen, right = [], zaya_numpy._router

  def watched(*args):
    state, probs = right(*args)
    seen.append(probs[:, : MODEL.num_experts])
    return state, probs

  buffers, choices = tiny.arrays(MODEL)[1], []
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(zaya_numpy, '_router', watched)
    for row in batch()['tokens'][rows]:
      choices.append(zaya_numpy.forward(MODEL, params, buffers, row[:9]).choice)
  n, e = MODEL.num_layers, MODEL.num_experts
  probs_NTE = np.array(seen).reshape(len(choices), n, 9, e).swapaxes(0, 1)
  probs_NTE = probs_NTE.reshape(n, -1, e)
  if share_NE is None:
    choice_NT = np.array(choices).swapaxes(0, 1).reshape(n, -1)
    hit_NTE = choice_NT[..., None] == np.arange(e)
    share_NE = hit_NTE.sum(1) / hit_NTE.sum((1, 2))[:, None]
  p_NTE = probs_NTE / probs_NTE.sum(-1, keepdims=True)
  return e * (share_NE[:, None] * p_NTE).sum(-1).mean(), share_NE


def load_of(tokens, likely):
  tokens, likely = (jnp.array([a], jnp.float32) for a in (tokens, likely))
  return router.Load(tokens=tokens, sample=tokens[:, None], likely=likely)


@pytest.mark.parametrize(
  'tokens, likely, expected',
  [
    ([5, 5, 9], [4, 6], 10.0),  # Even: 1 of a token, the skip class left out.
    ([10, 0, 0], [10, 0], 20.0),  # All to one: E.
    ([9, 1, 0], [8, 2], 2 * (0.9 * 8 + 0.1 * 2)),
    ([0, 0, 7], [3, 4], 0.0),  # Nobody chose an expert.
  ],
)
def test_closed_forms(tokens, likely, expected):
  spec = jax.sharding.PartitionSpec()
  run = mesh_lib.on_each(
    lambda load: even.even(load, 2), in_specs=(spec,), out_specs=spec
  )
  with jax.set_mesh(meshes.mesh_of(config_of())):
    found = jax.jit(run)(load_of(tokens, likely))
  np.testing.assert_allclose(found, [expected])


def slope(grads):
  """Along a direction: what the loss adds, and what the reference says."""
  params, _ = tiny.arrays(MODEL)
  rng = np.random.default_rng(1)
  along = jax.tree.map(lambda a: rng.normal(size=a.shape) * 0.1, params)
  added = jax.tree.map(np.subtract, grads, plain()[1])
  mine = sum(
    np.sum(np.float64(a) * b)
    for a, b in zip(jax.tree.leaves(added), jax.tree.leaves(along), strict=True)
  )
  _, share = specified(params)
  step = 1e-5
  moved = lambda by: jax.tree.map(
    lambda a, b: np.float64(a) + by * b, params, along
  )
  ends = [specified(moved(by), share)[0] for by in (step, -step)]
  reference = (ends[0] - ends[1]) / (2 * step)
  return mine, WEIGHT * MODEL.num_layers * reference


def test_it_is_told_and_its_gradient_is_that_of_the_specification():
  loss, grads, _, told = found(config_of())
  params, _ = tiny.arrays(MODEL)
  expected, _ = specified(params)
  np.testing.assert_allclose(told['train/balance_loss'], expected, rtol=1e-5)
  assert loss == plain()[0]  # The loss that is told is that of the text.
  assert not plain()[3]
  mine, reference = slope(grads)
  # Sums of float32, of terms that partly cancel.
  np.testing.assert_allclose(mine, reference, rtol=2e-3)


def test_another_share_is_noticed(monkeypatch):
  right = even.even
  uniform = lambda load, e: right(
    load._replace(tokens=jnp.ones_like(load.tokens)), e
  )
  monkeypatch.setattr(even, 'even', uniform)
  mine, reference = slope(found(config_of())[1])
  assert abs(mine - reference) > 0.1 * abs(reference)


def test_devices_share_the_tokens_of_all():
  model = dataclasses.replace(MODEL, num_experts=4)
  sizes = {'replica': 2, 'expert': 2}
  results = [
    found(config_of(model=model, **mesh))[1::2] for mesh in ({}, sizes)
  ]
  # Sums of float32 in another order.
  compare = lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)
  jax.tree.map(compare, *results)


def test_parts_of_a_batch_have_shares_of_their_own():
  loss, _, _, told = found(config_of(accumulation=2))
  np.testing.assert_allclose(loss, plain()[0], rtol=1e-5)
  params, _ = tiny.arrays(MODEL)
  parts = [specified(params, rows=slice(first, None, 2))[0] for first in (0, 1)]
  whole, _ = specified(params)
  np.testing.assert_allclose(
    told['train/balance_loss'], np.mean(parts), rtol=1e-5
  )
  assert abs(np.mean(parts) / whole - 1) > 1e-4


def test_no_weight_is_no_loss():
  assert not found(config_of(weight=0.0))[3]
