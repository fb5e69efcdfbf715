# SPDX-License-Identifier: Apache-2.0
"""From the gradients of logits and state back to that of the state, at once.

Axis letters: those of `ops.router.api`; M tokens of a program, N hidden
channels of a chunk.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from ops import dispatch
from ops.router import api
from ops.router.triton import numbers
from ops.triton import launch, tiles
from ops.triton.backend import plgpu

_PARTS = jnp.bfloat16
# Of a program. If its tile has fewer it takes several, one after another, so
# that small tiles do not leave more parts of the gradient of `out`.
_TOKENS = {'cuda': 64, 'rocm': 64, 'cpu': 16}


def tile(r: int) -> tiles.Tile:
  """That of a router width: `m` tokens, `n` hidden channels, `k` of a sum."""
  name = f'router_back_{max(r, 128)}'
  return tiles.tile(name, jnp.bfloat16).fit(1 << 20, r, r)


def backward(inputs: api.Backward, eps: float) -> api.Gradients:
  """See `api.Kernels`."""
  (tokens, r), classes = inputs.state.shape, inputs.d_logits.shape[1]
  size = tile(r)
  most = max(1, _TOKENS[dispatch.platform()] // size.m)
  turns = math.gcd(tokens // size.m, most)
  programs = tokens // (size.m * turns)
  parts = lambda count: jax.ShapeDtypeStruct((tokens, count * r), _PARTS)
  numbers_of = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
  results: dict[str, Any] = dict(
    three=parts(3),
    two=parts(2),
    d_previous=numbers_of(tokens, r),
    unit=parts(2),
    dz1=parts(2),
    a1=parts(2),
    dz2=parts(2),
    sums=numbers_of(programs, 4, r),
    d_out=numbers_of(programs, r, classes),
  )

  def kernel(*refs):
    given = api.Backward(*refs[: len(inputs)])
    to = api.Gradients(*refs[len(inputs) :])
    program = pl.program_id(0)

    def turn(n, carry):
      row = (program * turns + n) * size.m + jnp.arange(size.m, dtype=jnp.int32)
      _backward(given, to, size, eps, _Tile(program, row, n > 0))
      return carry

    jax.lax.fori_loop(0, turns, turn, 0)

  found = launch.kernel_call(
    kernel,
    'router_back',
    (programs,),
    (*results.values(),),
    warps=size.warps,
    stages=size.stages,
  )(*inputs)
  return api.Gradients(*found)


class _Tile(NamedTuple):
  """One of those of a program, and its rows; whether others were before."""

  program: jax.Array
  row: jax.Array
  goes_on: jax.Array

  def add(self, ref, place, value):
    """To what the tiles before have left at this place of the program."""
    at = ref.at[self.program, *place]
    mask = jnp.broadcast_to(self.goes_on, value.shape)
    plgpu.store(at, value + plgpu.load(at, mask=mask, other=0))


def _backward(given, to, size, eps, tile):
  r, row = given.state.shape[1], tile.row
  column = jnp.arange(r, dtype=jnp.int32)

  def sum_rows(index, value, column=column):
    place = jnp.int32(index), column
    tile.add(to.sums, place, jnp.sum(value, axis=0))

  of_out = _through_out(given, to, tile, sum_rows)
  jax.lax.fori_loop(0, r // _wide(r), of_out, 0)
  numbers.wait_for_writes()

  def chunk(i, sums):
    hidden = i * size.n + jnp.arange(size.n, dtype=jnp.int32)
    da = numbers.dot_again(to.dz2, row, given.fc2, hidden, size.k)
    a, slope = numbers.gelu_and_slope(numbers.load(given.z1, row, hidden))
    numbers.store_parts(to.a1, row, hidden, numbers.parts(a, _PARTS))
    dz = da * slope
    sum_rows(0, dz, hidden)
    dz = numbers.parts(dz, _PARTS)
    numbers.store_parts(to.dz1, row, hidden, dz)
    return numbers.dot(dz, numbers.load_parts(given.fc1, hidden, column), sums)

  zeros = jnp.zeros((size.m, r), jnp.float32)
  d_unit = jax.lax.fori_loop(0, r // size.n, chunk, zeros)

  state = numbers.load(given.state, row, column)
  rms = jax.lax.rsqrt(jnp.sum(state * state, axis=1) / r + eps)[:, None]
  unit = state * rms
  numbers.store_parts(to.unit, row, column, numbers.parts(unit, _PARTS))
  mean = (jnp.sum(d_unit * unit, axis=1) / r)[:, None]
  d_state = rms * (d_unit - unit * mean)
  d_state += numbers.load(given.d_state, row, column)
  sum_rows(2, d_state)
  sum_rows(3, d_state * numbers.load(given.previous, row, column))
  eda = plgpu.load(given.eda.at[column])[None]
  numbers.store(to.d_previous, row, column, eda * d_state)
  high, low = numbers.parts(d_state, _PARTS)
  numbers.store_parts(to.two, row, column, (high, low))
  numbers.store_parts(to.three, row, column, (high, low, high))


def _wide(r):
  """Channels of a chunk of the last layer, rows of a part of `d_out`."""
  return min(r, 64)


def _through_out(given, to, tile, sum_rows):
  """Writes the gradient of a chunk of z2, and a part of that of `out`."""
  row = tile.row
  classes = jnp.arange(given.d_logits.shape[1], dtype=jnp.int32)
  d_logits = numbers.parts(numbers.load(given.d_logits, row, classes), _PARTS)
  size = _wide(given.state.shape[1])

  def chunk(i, carry):
    column = i * size + jnp.arange(size, dtype=jnp.int32)
    da = numbers.dot(d_logits, numbers.load_parts(given.out, classes, column))
    a, slope = numbers.gelu_and_slope(numbers.load(given.z2, row, column))
    d_out = numbers.dot(numbers.parts(a, _PARTS), d_logits, axis=0)
    tile.add(to.d_out, (column[:, None], classes[None]), d_out)
    dz = da * slope
    numbers.store_parts(to.dz2, row, column, numbers.parts(dz, _PARTS))
    sum_rows(1, dz, column)
    return carry

  return chunk
