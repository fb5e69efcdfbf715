# SPDX-License-Identifier: Apache-2.0
"""The experts in Triton: exact zeros, what is written, what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ops
from ops import dispatch
from ops.experts import sorting
from ops.experts.triton import products
from ops.triton import tiles

# Tokens of each expert, then of the class without one.
SPLITS = {
  'uneven': (5, 40, 16, 0, 17, 3),
  'all_to_the_first': (70, 0, 0),
  'all_skipped': (0, 0, 0, 70),
}


def arrays(split, width=24, inner=16):
  rng = np.random.default_rng(0)
  experts = len(split) - 1
  choice = rng.permutation(np.repeat(np.arange(experts + 1), split))
  shapes = (sum(split), width), (experts, width, 2 * inner)
  shapes = (*shapes, (experts, inner, width), shapes[0])
  x, gate_up, down, dy = (
    jnp.asarray(rng.standard_normal(s), jnp.float32) for s in shapes
  )
  return choice, (x, gate_up, down), dy


def value_and_gradients(split, engine='triton'):
  choice, (x, gate_up, down), dy = arrays(split)
  choice = jnp.asarray(choice, jnp.int32)
  with dispatch.use(experts=engine):

    @jax.jit
    def run(dy, *args):
      mlp = lambda x, *matrices: ops.expert_mlp(x, choice, *matrices)
      y, vjp = jax.vjp(mlp, *args)
      return y, *vjp(dy)

    return [np.asarray(a) for a in run(dy, x, gate_up, down)]


@pytest.mark.parametrize('name', ['uneven', 'all_to_the_first', 'all_skipped'])
def test_skipped_tokens_and_empty_experts_get_exact_zeros(name):
  split = SPLITS[name]
  y, dx, d_gate_up, d_down = value_and_gradients(split)
  skipped = arrays(split)[0] == len(split) - 1
  assert np.isfinite(y).all() and np.isfinite(dx).all()
  assert not y[skipped].any() and not dx[skipped].any()
  assert (y[~skipped] != 0).all()
  for expert, count in enumerate(split[:-1]):
    assert d_gate_up[expert].any() == d_down[expert].any() == bool(count)


def test_rows_without_a_program_are_not_written(monkeypatch):
  tiles_of = sorting.tiles

  def short(*args):
    found = tiles_of(*args)
    return found._replace(end_P=found.end_P.at[1].set(0))

  monkeypatch.setattr(sorting, 'tiles', short)
  y = value_and_gradients(SPLITS['uneven'])[0]
  assert np.isnan(y).any()


def test_values_without_gradient_do_not_write_slopes():
  choice, (x, gate_up, down), _ = arrays(SPLITS['uneven'], inner=32)
  choice = jnp.asarray(choice, jnp.int32)
  with dispatch.use(experts='triton'):
    run = lambda x: ops.expert_mlp(x, choice, gate_up, down)
    wide = f'f32[{x.shape[0]},64]'
    assert wide not in str(jax.make_jaxpr(run)(x))
    assert wide in str(jax.make_jaxpr(jax.grad(lambda x: run(x).sum()))(x))


def test_tiles_of_any_shape_give_the_same():
  wanted = value_and_gradients(SPLITS['uneven'], 'xla')
  tile = tiles.Tile(32, 16, 16, 4, 1)
  with tiles.use(
    experts_up=tile,
    experts_down=tile,
    experts_d_up=tile,
    experts_d_x=tile,
    experts_d_weights=tile,
  ):
    found = value_and_gradients(SPLITS['uneven'])
  for a, b in zip(found, wanted, strict=True):
    np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * np.abs(b).max())


def test_types_that_differ_are_refused():
  x = jnp.zeros((4, 16), jnp.bfloat16)
  gate_up, down = jnp.zeros((2, 16, 32)), jnp.zeros((2, 16, 16))
  with (
    dispatch.use(experts='triton'),
    pytest.raises(dispatch.UnsupportedError, match='must all be bfloat16 or'),
  ):
    ops.expert_mlp(x, jnp.zeros(4, jnp.int32), gate_up, down)


@pytest.mark.parametrize('gate', [-200.0, -30.0, 0.0, 30.0, 200.0])
def test_swiglu_holds_at_any_gate(gate):
  x = jnp.ones((16, 16)) / 16
  gate_up = jnp.concatenate(
    [jnp.full((1, 16, 16), gate), jnp.full((1, 16, 16), 2.0)], axis=2
  )
  places = jnp.arange(16), jnp.array([0, 16])
  with tiles.use(experts_up=tiles.Tile(16, 16, 16, 4, 1)):
    a, slopes = products.up(x, places, gate_up, save=True)
  sigmoid = 1 / (1 + np.exp(-np.float64(gate)))
  by_gate = 2 * sigmoid * (1 + gate * (1 - sigmoid))
  np.testing.assert_allclose(a, 2 * gate * sigmoid, rtol=2e-5, atol=1e-30)
  np.testing.assert_allclose(slopes[:, :16], by_gate, rtol=2e-5, atol=1e-30)
  np.testing.assert_allclose(
    slopes[:, 16:], gate * sigmoid, rtol=2e-5, atol=1e-30
  )
