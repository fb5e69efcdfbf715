# SPDX-License-Identifier: Apache-2.0
"""Experts on several devices beside all of them on one, however tokens go."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import ops
from tests.support import close
from zaya_jax.parallel import expert_exchange

T, D, E, F = 32, 6, 8, 4  # Tokens of all devices.
ROUTES = {
  'even': lambda rng: np.arange(T) % E,
  'drawn': lambda rng: rng.integers(0, E + 1, T),
  'all_to_one': lambda rng: np.full(T, 5),
  'all_to_the_last': lambda rng: np.full(T, E - 1),
  'all_skip': lambda rng: np.full(T, E),
  'one_device_alone_sends': lambda rng: np.where(np.arange(T) < 4, 3, E),
}


def arrays(route):
  rng = np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
  expert_T = jnp.asarray(ROUTES[route](rng), jnp.int32)
  return draw(T, D), expert_T, draw(E, D, 2 * F), draw(E, F, D), draw(T, D)


def value_and_gradients(f, x_TD, expert_T, gate_up, down, dy_TD):
  y, back = jax.vjp(lambda x, g, d: f(x, expert_T, g, d), x_TD, gate_up, down)
  return y, back(dy_TD)


def on_devices(n):
  mesh = jax.make_mesh(
    (n,),
    (expert_exchange.AXIS,),
    axis_types=(jax.sharding.AxisType.Explicit,),
    devices=jax.devices()[:n],
  )
  rows = P(expert_exchange.AXIS)
  run = jax.jit(
    jax.shard_map(
      functools.partial(value_and_gradients, expert_exchange.expert_mlp),
      mesh=mesh,
      in_specs=rows,
      out_specs=rows,
    )
  )
  place = jax.sharding.NamedSharding(mesh, rows)
  return lambda *args: jax.device_get(run(*jax.device_put(args, place)))


@functools.cache
def compiled(n):
  return on_devices(n)


@pytest.mark.parametrize('route', ROUTES)
@pytest.mark.parametrize('n', [2, 4, 8])
def test_tokens_meet_their_experts_wherever_these_are(n, route):
  given = arrays(route)
  expected = value_and_gradients(ops.expert_mlp, *given)
  close.assert_close(compiled(n)(*given), expected, close.FLOAT32)


def test_rounds_that_are_too_few_drop_tokens(monkeypatch):
  original = expert_exchange._rounds
  one = lambda rows, like, n, count: original(rows, like, n, 1)
  monkeypatch.setattr(expert_exchange, '_rounds', one)
  given = arrays('all_to_one')
  (found, _) = on_devices(4)(*given)
  assert close.error(found, ops.expert_mlp(*given[:4])) > 0.1
