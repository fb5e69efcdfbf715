# SPDX-License-Identifier: Apache-2.0
"""The Triton kernels of `ops.cca_prologue`, of one head and a block of tokens.

Channels are loaded in parts: the two halves that rotate into each other, and
the rest. So a rotation needs no exchange between threads: the convolution makes
each part with the columns of its own.

Axis letters: those of `ops.cca_prologue`, and T tokens of a block, N channels
of a part.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from ops.cca import reference
from ops.triton.backend import plgpu


@dataclasses.dataclass(frozen=True)
class Sizes:
  """What is known when a kernel is made.

  Attributes:
    batch: B.
    length: L.
    heads: H.
    kv_heads: K.
    channels: C.
    rotated: R.
    lags: of the convolution.
    block: T.
    packed: whether there are segments.
  """

  batch: int
  length: int
  heads: int
  kv_heads: int
  channels: int
  rotated: int
  lags: int
  block: int
  packed: bool

  @property
  def blocks(self) -> int:
    """Of all rows."""
    return self.batch * pl.cdiv(self.length, self.block)

  @property
  def parts(self) -> tuple[tuple[int, int], ...]:
    """First channel and size of each part of a head."""
    half, c = self.rotated // 2, self.channels
    parts = ((0, half), (half, half), (2 * half, c - 2 * half))
    return tuple(part for part in parts if part[1])


class _Block:
  """Some tokens of a row, and what lies around them."""

  def __init__(self, sizes, segments, index):
    self._sizes, self._segments = sizes, segments[0] if segments else None
    blocks = pl.cdiv(sizes.length, sizes.block)
    self._batch = index // blocks
    first = index % blocks * sizes.block
    self._tokens = first + jnp.arange(sizes.block)
    self._here = (self._tokens < sizes.length) & (index < sizes.blocks)
    if segments:
      self._own = self._segment(0, self._here)

  def _segment(self, lag, mask):
    place = self._segments.at[self._batch, self._tokens - lag]
    return plgpu.load(place, mask=mask, other=-1)

  def mask(self, lag=None):
    """[T] whether the token `lag` before is of the same segment.

    None: only whether there is a token.
    """
    if lag is None:
      return self._here
    before = self._tokens - lag
    mask = self._here & (before >= 0) & (before < self._sizes.length)
    if self._segments is not None:
      mask &= self._segment(lag, mask) == self._own
    return mask

  def _place(self, ref, first, size, mask, lag):
    shape = (self._sizes.block, size)
    tokens = jnp.broadcast_to((self._tokens - lag)[:, None], shape)
    columns = first + jax.lax.broadcasted_iota(jnp.int32, shape, 1)
    place = ref.at[self._batch, tokens, columns]
    return place, jnp.broadcast_to(mask[:, None], shape)

  def load(self, ref, first, size, *, mask=None, lag=0):
    """[T, size] of channels from `first` on; 0 where the mask is not."""
    mask = self.mask() if mask is None else mask
    place, mask = self._place(ref, first, size, mask, lag)
    return plgpu.load(place, mask=mask, other=0)

  def store(self, ref, first, value, mask=None):
    """The same way back."""
    mask = self.mask() if mask is None else mask
    place, mask = self._place(ref, first, value.shape[1], mask, 0)
    plgpu.store(place, value.astype(ref.dtype), mask=mask)

  def row(self, ref, head):
    """Where the one number of each token and this head is."""
    return ref.at[self._batch, head, self._tokens], self._here


def _dot(a, b):
  precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
  return jnp.dot(a, b, precision=precision, preferred_element_type=jnp.float32)


def _add_partners(sizes, block, head, ref, part, weights, value):
  """Adds the heads that share a mean with this one, in float32.

  Args:
    sizes: of the operation.
    block: the tokens.
    head: of this program.
    ref: [B, L, Z].
    part: first channel of a head, size.
    weights: of the key of a query, and of a query of a key.
    value: [T, N] to add to.
  """
  first, size = part
  group = sizes.heads // sizes.kv_heads
  is_key = head >= sizes.heads
  start = jnp.where(
    is_key, (head - sizes.heads) * group, sizes.heads + head // group
  )
  # A choice between two literals is typed wrongly when it is lowered.
  weight = weights[0] + is_key.astype(jnp.float32) * (weights[1] - weights[0])

  def add(n, value):
    more = block.load(ref, (start + n) * sizes.channels + first, size)
    return value + weight * more.astype(jnp.float32)

  count = 1 + is_key.astype(jnp.int32) * (group - 1)
  return jax.lax.fori_loop(0, count, add, value)


def _rotate(sizes, block, cos, sin, parts, sign):
  """Rotates the first two parts, by the angle times `sign`."""
  half = sizes.rotated // 2
  c, s = block.load(cos, 0, half), sign * block.load(sin, 0, half)
  left, right, *rest = parts
  return [left * c - right * s, right * c + left * s, *rest]


def forward(*refs: Any, sizes: Sizes) -> None:
  """Queries and keys, and what going back needs of them."""
  z, kernel, bias, temperature, cos, sin, *segments = refs[: 6 + sizes.packed]
  q, k, unit, scale = refs[6 + sizes.packed :]
  head, c = pl.program_id(0), sizes.channels
  is_key = head >= sizes.heads
  biases = [
    bias[pl.ds(head * c + first, size)].astype(jnp.float32)
    for first, size in sizes.parts
  ]
  warmth = temperature[head]
  block = _Block(sizes, segments, pl.program_id(1))
  values = [jnp.broadcast_to(b[None], (sizes.block, len(b))) for b in biases]

  def add_lag(lag, values):
    past = block.load(z, head * c, c, mask=block.mask(lag), lag=lag)
    return [
      y + _dot(past, kernel[head, :, pl.ds(lag * c + first, size)])
      for y, (first, size) in zip(values, sizes.parts, strict=True)
    ]

  values = jax.lax.fori_loop(0, sizes.lags, add_lag, values)
  shares = (0.5, 0.5 * sizes.kv_heads / sizes.heads)
  for n, part in enumerate(sizes.parts):
    own = block.load(z, head * c + part[0], part[1]).astype(jnp.float32)
    value = values[n] + 0.5 * own
    values[n] = _add_partners(sizes, block, head, z, part, shares, value)
  square = sum(jnp.sum(y * y, axis=1) for y in values)
  length = jax.lax.rsqrt(jnp.maximum(square, reference.NORM_EPS**2))
  length *= c**0.5
  place, mask = block.row(scale, head)
  plgpu.store(place, length, mask=mask)
  values = [y * length[:, None] for y in values]
  values = _rotate(sizes, block, cos, sin, values, 1)
  key = (head - sizes.heads) * c
  for (first, _), y in zip(sizes.parts, values, strict=True):
    mask = block.mask()
    block.store(q, head * c + first, y, mask & ~is_key)
    block.store(k, key + first, y * warmth, mask & is_key)
    block.store(unit, key + first, y, mask & is_key)


def unnormalize(*refs: Any, sizes: Sizes) -> None:
  """The gradient before the norm, and its sums over the block."""
  q, unit, scale, temperature, cos, sin, dq, dk, dy, warm, sums = refs
  head, c = pl.program_id(0), sizes.channels
  index = pl.program_id(1)
  block = _Block(sizes, (), index)
  is_key = head >= sizes.heads
  key = (head - sizes.heads) * c

  def load(queries, keys, part):
    first, size = part
    mask = block.mask()
    of_q = block.load(queries, head * c + first, size, mask=mask & ~is_key)
    of_k = block.load(keys, key + first, size, mask=mask & is_key)
    return of_q.astype(jnp.float32) + of_k.astype(jnp.float32)

  # Rotated, both: a rotation keeps their product.
  units = [load(q, unit, part) for part in sizes.parts]
  grads = [load(dq, dk, part) for part in sizes.parts]
  products = (u * g for u, g in zip(units, grads, strict=True))
  along: Any = sum(jnp.sum(product, axis=1) for product in products)
  warm[index, head] = jnp.sum(along)
  place, mask = block.row(scale, head)
  length = plgpu.load(place, mask=mask, other=0) * temperature[head]
  grads = [
    length[:, None] * (g - u * (along / c)[:, None])
    for u, g in zip(units, grads, strict=True)
  ]
  grads = _rotate(sizes, block, cos, sin, grads, -1)
  for (first, size), g in zip(sizes.parts, grads, strict=True):
    block.store(dy, head * c + first, g)
    sums[index, pl.ds(head * c + first, size)] = jnp.sum(g, axis=0)


def convolve_back(*refs: Any, sizes: Sizes) -> None:
  """The gradient of z: of the convolution's inputs, and of the means.

  It is where that of the projections begins.
  """
  dy, kernel, *segments, dz = refs
  head, c = pl.program_id(0), sizes.channels

  block = _Block(sizes, segments, pl.program_id(1))
  value = 0.5 * block.load(dy, head * c, c).astype(jnp.float32)
  shares = (0.5 * sizes.kv_heads / sizes.heads, 0.5)
  value = _add_partners(sizes, block, head, dy, (0, c), shares, value)

  def add_lag(lag, value):
    later = block.load(dy, head * c, c, mask=block.mask(-lag), lag=-lag)
    return value + _dot(later, kernel[head, :, pl.ds(lag * c, c)].T)

  value = jax.lax.fori_loop(0, sizes.lags, add_lag, value)
  block.store(dz, head * c, value)


def of_values(*refs: Any, sizes: Sizes) -> None:
  """The gradient of the values' projections, behind that of z.

  Of a key head's share of both: those of the token itself, then those that the
  next token has taken.
  """
  dv, _, *segments, out = refs  # The second is the memory of the result.
  half = sizes.channels // 2
  width, own = sizes.kv_heads * half, pl.program_id(0) * half
  block = _Block(sizes, segments, pl.program_id(1))
  for later in (0, 1):
    column = later * width + own
    mask = block.mask(-later)
    value = block.load(dv, column, half, mask=mask, lag=-later)
    z = (sizes.heads + sizes.kv_heads) * sizes.channels
    block.store(out, z + column, value)


def kernel_gradient(*refs: Any, sizes: Sizes) -> None:
  """A part of the gradient of the kernel at one lag."""
  z, dy, *segments, parts = refs
  head, lag, c = pl.program_id(0), pl.program_id(1), sizes.channels

  split, splits = pl.program_id(2), pl.num_programs(2)

  def add(n, total):
    block = _Block(sizes, segments, split + n * splits)
    own = block.load(z, head * c, c)
    later = block.load(dy, head * c, c, mask=block.mask(-lag), lag=-lag)
    return total + _dot(own.T, later)

  # All have as many blocks: those behind the last one are empty.
  steps = pl.cdiv(sizes.blocks, splits)
  total = jax.lax.fori_loop(0, steps, add, jnp.zeros((c, c)))
  parts[split, head, :, pl.ds(lag * c, c)] = total
