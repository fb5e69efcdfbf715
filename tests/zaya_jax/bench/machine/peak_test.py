# SPDX-License-Identifier: Apache-2.0
"""A stack of MLPs: its FLOPs and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zaya_jax import config as config_lib
from zaya_jax.bench.machine import peak
from zaya_jax.bench.sweep import frame as frame_lib


def arrays(width, tokens):
  rng = np.random.default_rng(0)
  make = lambda *shape: jnp.asarray(0.6 * rng.normal(size=shape), jnp.float32)
  layers = range(peak.LAYERS)
  return (
    make(tokens, width),
    tuple(make(width, 4 * width) for _ in layers),
    tuple(make(4 * width, width) for _ in layers),
  )


def products(jaxpr):
  """FLOPs of the products in a jaxpr, inner ones included."""
  total = 0
  for equation in jaxpr.eqns:
    if equation.primitive.name == 'dot_general':
      (lhs, _), _ = equation.params['dimension_numbers']
      contracted = equation.invars[0].aval.shape[lhs[0]]
      total += 2 * equation.outvars[0].aval.size * contracted
    for value in equation.params.values():
      if hasattr(value, 'jaxpr'):
        total += products(value.jaxpr)
  return total


@pytest.mark.parametrize('width, tokens', [(8, 5), (16, 32)])
def test_flops_are_those_of_the_program(width, tokens):
  traced = jax.make_jaxpr(peak.gradients)(*arrays(width, tokens))
  assert peak.flops(width, tokens) == products(traced.jaxpr)


def test_gradient_is_that_of_differences():
  x, up, down = arrays(4, 3)
  found = jax.jit(peak.gradients)(x, up, down)[0]

  @jax.jit
  def loss(x):
    for u, d in zip(up, down, strict=True):
      x = jax.nn.gelu(x @ u) @ d
    return jnp.mean(x**2)

  step = 1e-2
  for place in [(0, 0), (2, 3)]:
    more, less = (loss(x.at[place].add(s)) for s in (step, -step))
    wanted = float(more - less) / (2 * step)
    assert float(found[place]) == pytest.approx(wanted, rel=0.02)


def test_run_measures_each_width():
  frame = frame_lib.Frame(minutes=10, repeats=1, cases=('mlp 128 bfloat16',))
  peak.run(frame, config_lib.Config(mode='bench'))
  [point] = frame.points
  assert point.work == peak.flops(128, 256)
