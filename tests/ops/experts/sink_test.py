# SPDX-License-Identifier: Apache-2.0
"""Gradients that go to a sink are those that the matrices would get."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ops
from ops import dispatch
from ops.experts import hopper, sink
from tests.support import gpus

# Layers, experts, width, inner width, tokens.
N, E, D, F, T = 2, 3, 16, 16, 40


def arrays():
  rng = np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)
  choice_NT = jnp.asarray(rng.integers(0, E + 1, (N, T)), jnp.int32)
  return draw(T, D), choice_NT, draw(N, E, D, 2 * F), draw(N, E, F, D)


@functools.cache
def apart(engine):
  """The gradients of x and of both stacks, without a sink."""
  x, choice, *matrices = arrays()

  def run(x, gate_up, down):
    for i in range(N):
      x = x + ops.expert_mlp(x, choice[i], gate_up[i], down[i])
    return jnp.sum(x**2)

  with dispatch.use(experts=engine):
    return jax.jit(jax.grad(run, (0, 1, 2)))(x, *matrices)


def make_sunk(engine):
  """A function of `add` and of what the sinks begin with: the same by sinks."""
  x, choice, gate_up, down = arrays()
  empty = sink.Stacks(*map(jnp.zeros_like, (gate_up, down)))

  def run(x, stacks, first, add):
    for i in range(N):
      place = sink.Sink(stacks, jnp.stack([jnp.int32(i), add]))
      y, stacks = ops.expert_mlp(x, choice[i], gate_up[i], down[i], place)
      x = x + y
    return jnp.sum(sink.begin(x, stacks, sink.Stacks(*first)) ** 2)

  compiled = jax.jit(jax.grad(run, (0, 1)))

  def call(add, first=jnp.nan):
    filled = [jnp.full_like(a, first) for a in (gate_up, down)]
    with dispatch.use(experts=engine):
      dx, stacks = compiled(x, empty, filled, jnp.int32(add))
    return dx, *stacks

  return call


# Compiled once; where a part is patched, anew.
sunk = functools.cache(make_sunk)


def assert_equal(found, wanted):
  for a, b in zip(found, wanted, strict=True):
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize('engine', ['xla', 'triton'])
def test_sink_is_filled_with_the_gradients(engine):
  # Bit for bit; it began with NaN, so all of it is written.
  assert_equal(sunk(engine)(0), apart(engine))


@pytest.mark.parametrize('engine', ['xla', 'triton'])
def test_sink_is_added_to(engine):
  dx, *wanted = apart(engine)
  assert_equal(sunk(engine)(1, 3.0), (dx, *(3.0 + a for a in wanted)))


def test_slice_of_another_layer_is_noticed(monkeypatch):
  right = sink.put
  wrong = lambda stack, at, part: right(stack, at.at[0].set(0), part)
  monkeypatch.setattr(sink, 'put', wrong)
  with pytest.raises(AssertionError):
    assert_equal(make_sunk('xla')(0), apart('xla'))


def test_adding_where_nothing_is_yet_is_noticed():
  with pytest.raises(AssertionError):
    assert_equal(sunk('xla')(1), apart('xla'))


@pytest.mark.parametrize(('dtype', 'adds'), [('bfloat16', 0), ('float32', 2)])
def test_hopper_kernels_write_into_the_stack(dtype, adds):
  shape = lambda *s, t='bfloat16': jax.ShapeDtypeStruct(s, t)

  def run(x, choice, gate_up, down, *stacks):
    def layers(x, stacks):
      for i in range(N):
        place = sink.Sink(stacks, jnp.asarray([i, 1], jnp.int32))
        y, stacks = hopper.expert_mlp(x, choice, gate_up, down, place)
        x = x + y
      return x, stacks

    (y, _), vjp = jax.vjp(layers, x, sink.Stacks(*stacks))
    return vjp((y, sink.Stacks(*stacks)))

  traced = jax.jit(run).trace(
    shape(512, 256),
    shape(512, t='int32'),
    shape(2, 256, 512),
    shape(2, 256, 256),
    shape(N, 2, 256, 512, t=dtype),
    shape(N, 2, 256, 256, t=dtype),
  )
  text = gpus.lower(traced, 'cuda').as_text()
  assert text.count('output_operand_alias<') >= 2
  assert text.count('cp.reduce') == adds
