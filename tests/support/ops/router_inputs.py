# SPDX-License-Identifier: Apache-2.0
"""Inputs of the router, for tests of its engines."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import ops
from ops import case as case_lib
from ops import dispatch
from ops.router import cases

CASE = next(c for c in cases.CASES if c.name == '2x16x24-32x17')
NAMES = (
  *('choice', 'weight', 'probs', 'state', 'd_h', 'd_previous', 'd_down'),
  *('d_down_bias', 'd_eda', 'd_norm', 'd_fc1', 'd_fc1_bias', 'd_fc2'),
  *('d_fc2_bias', 'd_out'),
)


def arguments(dtype):
  """Arrays, options."""
  args, kwargs = CASE.arguments(np.random.default_rng(0), jnp.dtype(dtype))
  return [jnp.asarray(a) for a in args], kwargs


def outputs(run, args):
  """The results, then the gradients, by `NAMES`."""
  return dict(zip(NAMES, run(args), strict=True))


@functools.cache
def program(engine):
  """`traced_anew` for bfloat16 by an engine: compiled here, for all tests.

  So call it before a mistake is made.
  """
  args, kwargs = arguments('bfloat16')
  with dispatch.use(router=engine):
    return traced_anew(kwargs).lower(args).compile()


def traced_anew(kwargs):
  """A function: arguments -> what `outputs` names."""

  @jax.jit
  def both(args):
    run = functools.partial(ops.router, **kwargs)
    out, vjp = case_lib.vjp(run, CASE.gradients, args)
    rng = np.random.default_rng(1)
    draw = lambda a: jnp.asarray(rng.standard_normal(a.shape), a.dtype)
    return [*out, *vjp(jax.tree.map(draw, out))]

  return both


def differ(found, wanted):
  """The names of what differs by more than rounding."""

  def far(a, b):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return not np.abs(a - b).max() < 4e-3 * np.abs(b).max()

  return {name for name, value in found.items() if far(value, wanted[name])}
