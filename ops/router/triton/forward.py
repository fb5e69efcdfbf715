# SPDX-License-Identifier: Apache-2.0
"""From the product with `down` to the choice, in one kernel.

Axis letters: those of `ops.router.api`; M tokens of a program, N hidden
channels of a chunk.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from ops.router import api
from ops.router.triton import numbers
from ops.triton import launch, tiles
from ops.triton.backend import plgpu


def tile(r: int) -> tiles.Tile:
  """That of a router width: `m` tokens, `n` hidden channels, `k` of a sum."""
  return tiles.tile(f'router_{max(r, 128)}', jnp.float16).fit(1 << 20, r, r)


def forward(inputs: api.Forward, eps: float) -> tuple[jax.Array, ...]:
  """See `api.Kernels`."""
  tokens, r = inputs.previous.shape
  x = inputs.balance.size
  size = tile(r)

  def kernel(*refs):
    _forward(refs[: len(flat)], refs[len(flat) :], size, eps)

  flat = jax.tree.leaves(inputs)
  number = jax.ShapeDtypeStruct((tokens,), jnp.float32)
  rows = jax.ShapeDtypeStruct((tokens, r), jnp.float32)
  results = (
    jax.ShapeDtypeStruct((tokens,), jnp.int32),
    number,
    jax.ShapeDtypeStruct((tokens, x), jnp.float32),
    *(rows, rows, rows),
    jax.ShapeDtypeStruct((tokens, 2 * r), jnp.float16),
  )
  *found, _ = launch.kernel_call(
    kernel,
    'router',
    (tokens // size.m,),
    results,
    warps=size.warps,
    stages=size.stages,
  )(*flat)
  return tuple(found)


def _forward(inputs, results, size, eps):
  wide, previous, down_bias, eda, bias1, bias2, *rest = inputs
  balance, fc1, fc2, out, factors = rest
  choice, weight, probs, state, z1, z2, again = results
  r = previous.shape[1]
  row = pl.program_id(0) * size.m + jnp.arange(size.m, dtype=jnp.int32)
  column = jnp.arange(r, dtype=jnp.int32)
  factor1, factor_a, one_over_a, factor2, factor_out = (
    plgpu.load(factors.at[jnp.int32(i)]) for i in range(5)
  )
  of_all = lambda ref: plgpu.load(ref.at[column])[None]

  own = numbers.load(wide, row, column) + numbers.load(wide, row, r + column)
  mixed = (own + of_all(down_bias)) + of_all(eda) * numbers.load(
    previous, row, column
  )
  numbers.store(state, row, column, mixed)
  rms = jax.lax.rsqrt(jnp.sum(mixed * mixed, axis=1) / r + eps)
  scaled = mixed * (rms * 2.0 ** api.unit_power(r))[:, None]
  numbers.store_parts(again, row, column, numbers.parts(scaled, jnp.float16))
  numbers.wait_for_writes()

  def chunk(i, sums):
    hidden = i * size.n + jnp.arange(size.n, dtype=jnp.int32)
    z = numbers.dot_again(again, row, fc1, hidden, size.k)
    z = z * factor1 + plgpu.load(bias1.at[hidden])[None]
    numbers.store(z1, row, hidden, z)
    a = numbers.parts(numbers.gelu(z) * factor_a, jnp.float16)
    return numbers.dot(a, numbers.load_parts(fc2, hidden, column), sums)

  zeros = jnp.zeros((size.m, r), jnp.float32)
  sums = jax.lax.fori_loop(0, r // size.n, chunk, zeros)
  z = sums * (one_over_a * factor2) + of_all(bias2)
  numbers.store(z2, row, column, z)
  up, down = _powers(a := numbers.gelu(z))
  a = numbers.parts(a * up[:, None], jnp.float16)
  classes = jnp.arange(out.shape[2], dtype=jnp.int32)
  logits = numbers.dot(a, numbers.load_parts(out, column, classes))
  logits = logits * (down * factor_out)[:, None]
  _choose(logits, balance, row, classes, choice, weight, probs)


def _powers(x):
  """By which powers of two rows still are float16; and their inverses."""
  top = jax.lax.bitcast_convert_type(jnp.max(jnp.abs(x), axis=1), jnp.int32)
  up = jnp.minimum(127 + 14 + 127 - (top >> 23), 253)
  number = lambda bits: jax.lax.bitcast_convert_type(bits << 23, jnp.float32)
  return number(up), number(254 - up)


def _choose(logits, balance_ref, row, classes, choice, weight, probs):
  """Softmax, and the best class with the balancing bias."""
  x = balance_ref.size
  exists = (classes < x)[None]
  logits = jnp.where(exists, logits, -np.inf)
  p = jnp.exp(logits - jnp.max(logits, axis=1)[:, None])
  p = p / jnp.sum(p, axis=1)[:, None]
  place = probs.at[row[:, None], classes[None]]
  plgpu.store(place, p, mask=jnp.broadcast_to(exists, p.shape))
  balance = plgpu.load(balance_ref.at[classes], mask=classes < x, other=-np.inf)
  biased = p + balance[None]
  is_best = biased == jnp.max(biased, axis=1)[:, None]
  # The first one; of NaN the last, which exists.
  best = jnp.min(jnp.where(is_best, classes[None], x - 1), axis=1)
  plgpu.store(choice.at[row], best)
  hit = best[:, None] == classes[None]
  plgpu.store(weight.at[row], jnp.sum(jnp.where(hit, p, 0), axis=1))
