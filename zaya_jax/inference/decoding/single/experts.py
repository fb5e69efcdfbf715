# SPDX-License-Identifier: Apache-2.0
"""The router and the chosen expert of one token, in five kernels.

Axis letters: those of `model.moe` and `model.router`; I inner width of an
expert.
"""

from typing import Any

import jax
import jax.numpy as jnp

from ops.router.triton import numbers
from zaya_jax.inference.decoding.single import tiles


def state(
  x_D: jax.Array,
  vectors_5D: jax.Array,
  router: Any,
  before_R: jax.Array | None,
  *,
  eps: float,
  dtype: Any,
) -> tuple[jax.Array, jax.Array]:
  """The state of the router [R] float32, and the normed stream in `dtype`.

  Args:
    x_D: the stream.
    vectors_5D: of the merge before, of which the last is that of the norm.
    router: with matrices as [out, in].
    before_R: the state of the layer before; None: there is none.
    eps: of norms.
    dtype: of the normed stream.
  """
  rows = router.down_bias[...].size
  each, programs = tiles.share('state', rows)

  def kernel(x, vectors, down, bias, *refs):
    *more, new, normed = refs
    row, mask = tiles.own(rows, each)
    matrix = tiles.matrix(down, row, mask)
    column, there = tiles.span(x.shape[0])
    scale = tiles.load(vectors, (jnp.int32(4), column), there)
    mine = tiles.load(bias, (row,), mask)
    if more:
      eda, before = (tiles.load(ref, (row,), mask) for ref in more)
      mine += eda * before
    h = tiles.norm(tiles.vector(x), scale, x.shape[0], eps)
    h = tiles.rounded(h, dtype)
    tiles.store(new, (row,), tiles.product(matrix, h) + mine, mask)
    tiles.store(normed, (column,), h, there & tiles.first())

  results = (
    jax.ShapeDtypeStruct((rows,), jnp.float32),
    jax.ShapeDtypeStruct(x_D.shape, dtype),
  )
  more = () if before_R is None else (router.eda[...], before_R)
  return tiles.call(kernel, 'state', programs, results)(
    x_D, vectors_5D, router.down[...], router.down_bias[...], *more
  )


def hidden(
  a_R: jax.Array,
  w_RR: jax.Array,
  bias_R: jax.Array,
  norm_R: jax.Array | None,
  eps: float,
) -> jax.Array:
  """[R] float32: a layer of the router; with `norm_R` of the normed input."""
  rows = a_R.size
  each, programs = tiles.share('hidden', rows)

  def kernel(a, w, bias, *refs):
    *norm, out = refs
    row, mask = tiles.own(rows, each)
    matrix = tiles.matrix(w, row, mask)
    own = tiles.load(bias, (row,), mask)
    x = tiles.vector(a)
    if norm:
      x = tiles.norm(x, tiles.vector(norm[0]), rows, eps)
    y = tiles.product(matrix, x) + own
    tiles.store(out, (row,), numbers.gelu(y), mask)

  result = jax.ShapeDtypeStruct((rows,), jnp.float32)
  norm = () if norm_R is None else (norm_R,)
  return tiles.call(kernel, 'hidden', programs, result)(
    a_R, w_RR, bias_R, *norm
  )


def gate_up(
  a_R: jax.Array, router: Any, h_D: jax.Array, w_EFD: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """What the chosen expert makes of the stream before its last matrix.

  Args:
    a_R: of `hidden`.
    router: with matrices as [out, in].
    h_D: the normed stream.
    w_EFD: gates, then as many others, of each expert.

  Returns:
    [I] in the type of the stream, zeros where no expert is chosen; the choice,
    [1] int32; its probability, [1] float32.
  """
  experts, rows = w_EFD.shape[0], w_EFD.shape[1] // 2
  each, programs = tiles.share('gate_up', rows)

  def kernel(a, out, balance, h, w, new, choice, weight):
    x = tiles.vector(h)
    mine, chance = _choose(a, out, balance)
    row, mask = tiles.own(rows, each)
    # The skip class reads nothing.
    expert, read = jnp.minimum(mine, experts - 1), mask & (mine < experts)
    gates = tiles.matrix(w, row, read, expert)
    others = tiles.matrix(w, rows + row, read, expert)
    gate, other = tiles.product(gates, x), tiles.product(others, x)
    tiles.store(new, (row,), gate / (1 + jnp.exp(-gate)) * other, mask)
    only, there = tiles.span(1)
    there &= tiles.first()
    tiles.store(choice, (only,), jnp.full(only.shape, mine), there)
    tiles.store(weight, (only,), jnp.full(only.shape, chance), there)

  results = (
    jax.ShapeDtypeStruct((rows,), h_D.dtype),
    jax.ShapeDtypeStruct((1,), jnp.int32),
    jax.ShapeDtypeStruct((1,), jnp.float32),
  )
  return tiles.call(kernel, 'gate_up', programs, results)(
    a_R, router.out[...], router.balance_bias[...], h_D, w_EFD
  )


def _choose(a, out, balance):
  """The class with the largest biased probability, and that probability."""
  classes = out.shape[0]
  row, there = tiles.span(classes)
  logits = tiles.product(tiles.matrix(out, row, there), tiles.vector(a))
  bias = tiles.vector(balance)
  logits = jnp.where(there, logits, -jnp.inf)
  probs = jnp.exp(logits - jnp.max(logits))
  probs /= jnp.sum(probs)
  biased = jnp.where(there, probs + bias, -jnp.inf)
  # The first of them, as `argmax` says; where all are NaN, any.
  best = jnp.where(biased == jnp.max(biased), row, classes - 1)
  mine = jnp.min(best)
  return mine, jnp.sum(jnp.where(row == mine, probs, 0))


def down(
  made: tuple[jax.Array, jax.Array, jax.Array],
  w_EDI: jax.Array,
  vectors_5D: jax.Array,
  x_D: jax.Array,
  h_D: jax.Array,
  skip: str,
) -> jax.Array:
  """[D] float32: the stream with what the expert adds.

  Args:
    made: of `gate_up`.
    w_EDI: the last matrix of each expert.
    vectors_5D: of the merge.
    x_D: the stream.
    h_D: normed.
    skip: what a token without an expert adds: 'identity': `h_D`.
  """
  experts, rows = w_EDI.shape[:2]
  each, programs = tiles.share('down', rows)

  def kernel(a, choice, weight, w, vectors, x, h, new):
    row, mask = tiles.own(rows, each)
    mine, chance = choice[jnp.int32(0)], weight[jnp.int32(0)]
    expert, real = jnp.minimum(mine, experts - 1), mine < experts
    matrix = tiles.matrix(w, row, mask & real, expert)
    merge = tiles.merge(vectors, x, row, mask)
    y = tiles.product(matrix, tiles.vector(a))
    if skip == 'identity':
      y = jnp.where(real, y, tiles.load(h, (row,), mask))
    branch = tiles.rounded(y * chance, h.dtype)
    tiles.store(new, (row,), merge(branch), mask)

  result = jax.ShapeDtypeStruct((rows,), jnp.float32)
  return tiles.call(kernel, 'down', programs, result)(
    *made, w_EDI, vectors_5D, x_D, h_D
  )
