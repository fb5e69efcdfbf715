# SPDX-License-Identifier: Apache-2.0
"""Parts of all matrices, for both passes, in one kernel.

They are small: XLA makes about fourteen kernels of them, each of which has
next to nothing to do.

Axis letters: those of `ops.router.api`.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from ops.router import api
from ops.router.triton import numbers
from ops.triton import launch
from ops.triton.backend import plgpu

_ROWS, _WARPS = 32, 8  # Rows of a matrix that a program writes.


def weights(inputs: api.Matrices) -> api.Weights:
  """See `api.Kernels`."""
  (d, r), x = inputs.down.shape, inputs.out.shape[1]
  z, rows = api.classes(x), min(_ROWS, r)
  half = lambda *s: jax.ShapeDtypeStruct(s, jnp.float16)
  brain = lambda *s: jax.ShapeDtypeStruct(s, jnp.bfloat16)
  results: dict[str, Any] = dict(
    down=brain(d, 2 * r),
    fc1=half(2, r, r),
    fc2=half(2, r, r),
    out=half(2, r, z),
    factors=jax.ShapeDtypeStruct((5,), jnp.float32),
    back_down=brain(d, 3 * r),
    back_fc1=brain(2, r, r),
    back_fc2=brain(2, r, r),
    back_out=brain(2, z, r),
  )

  def kernel(*refs):
    given = api.Matrices(*refs[: len(inputs)])
    _weights(given, api.Weights(*refs[len(inputs) :]), rows)

  programs = 3 * (r // rows) + pl.cdiv(d, rows)
  made = launch.kernel_call(
    kernel, 'router_weights', (programs,), (*results.values(),), warps=_WARPS
  )(*inputs)
  return api.Weights(*made)


def _weights(given, to, rows):
  """Some rows of one matrix; of the exact ones, with the largest of all."""
  count = given.fc1.shape[0] // rows  # Programs of each of them.
  program = pl.program_id(0)
  matrix = jnp.minimum(jax.lax.div(program, jnp.int32(count)), 3)
  chunk = program - matrix * count
  store = lambda index, value: plgpu.store(
    to.factors.at[jnp.int32(index)], value, mask=chunk == 0
  )

  @pl.when(matrix == 0)
  def _():
    r = given.norm.shape[0]
    power, top = _exact(given.fc1, to.fc1, to.back_fc1, rows, chunk, given.norm)
    channel = jnp.arange(r, dtype=jnp.int32)
    bias = jnp.max(jnp.abs(plgpu.load(given.fc1_bias.at[channel])))
    # |z1| <= |unit| |column of fc1| + |bias|, both lengths sqrt(R) at most.
    a1_power = 15 - api.exponent(r * top + bias)
    store(0, api.power_of_two(-api.unit_power(r) - power))
    store(1, api.power_of_two(a1_power))
    store(2, api.power_of_two(-a1_power))

  @pl.when(matrix == 1)
  def _():
    power, _ = _exact(given.fc2, to.fc2, to.back_fc2, rows, chunk)
    store(3, api.power_of_two(-power))

  @pl.when(matrix == 2)
  def _():
    power, _ = _exact(given.out, to.out, to.back_out, rows, chunk)
    store(4, api.power_of_two(-power))

  @pl.when(matrix == 3)
  def _():
    _of_down(given.down, to.down, to.back_down, rows, chunk)


def _exact(ref, to, back, rows, chunk, norm_ref=None):
  """Parts of a matrix times a power of two; which, and the largest number."""
  _, r, width = to.shape
  column = jnp.arange(width, dtype=jnp.int32)

  def load(index):
    row = index * rows + jnp.arange(rows, dtype=jnp.int32)
    exists = jnp.broadcast_to((column < ref.shape[1])[None], (rows, width))
    w = plgpu.load(ref.at[row[:, None], column[None]], mask=exists, other=0)
    return row, w if norm_ref is None else plgpu.load(norm_ref.at[row])[
      :, None
    ] * w

  def larger(index, top):
    _, w = load(index)
    return jnp.maximum(top, jnp.max(jnp.max(jnp.abs(w), axis=1)))

  top = jax.lax.fori_loop(0, r // rows, larger, jnp.float32(0))
  power = 15 - api.exponent(top)
  row, w = load(chunk)
  scaled = numbers.parts(w * api.power_of_two(power), to.dtype)
  for i, part in enumerate(scaled):
    plgpu.store(to.at[jnp.int32(i), row[:, None], column[None]], part)
  for i, part in enumerate(numbers.parts(w, back.dtype)):
    plgpu.store(back.at[jnp.int32(i), column[None], row[:, None]], part)
  return power, top


def _of_down(ref, to, back, rows, chunk):
  """Parts side by side: (high, low), and (high, high, low)."""
  d, r = ref.shape
  row = chunk * rows + jnp.arange(rows, dtype=jnp.int32)
  column = jnp.arange(r, dtype=jnp.int32)
  exists = jnp.broadcast_to((row < d)[:, None], (rows, r))
  w = plgpu.load(ref.at[row[:, None], column[None]], mask=exists, other=0)
  high, low = numbers.parts(w, to.dtype)
  for target, parts in ((to, (high, low)), (back, (high, high, low))):
    for i, part in enumerate(parts):
      place = target.at[row[:, None], i * r + column[None]]
      plgpu.store(place, part, mask=exists)
