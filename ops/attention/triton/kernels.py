# SPDX-License-Identifier: Apache-2.0
"""What the three kernels of attention share."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


class Program:
  """Where a program stands: its sequence, head, and block of rows.

  Attributes:
    b: index of the sequence.
    h: of the head, a query head or (side 'k') a key head.
    kv: of its key head.
    group: G.
    rows: slice of its rows.
  """

  def __init__(self, side, refs, extras, bounds, blocks):
    self.h, self.b, n = (pl.program_id(axis) for axis in range(3))
    if side == 'q':  # The last queries see the most keys.
      n = bounds.shape[1] - 1 - n
    size = blocks.queries if side == 'q' else blocks.keys
    self.group = refs['q'].shape[2] // refs['k'].shape[2]
    self.kv = self.h // self.group
    self.rows = pl.ds(n * size, size)
    self._side, self._extras = side, extras
    b = self.b if bounds.shape[0] > 1 else 0
    self._ends = [bounds[b, n, i] for i in range(4)]
    if 'q_segments' in extras:
      self._own = plgpu.load(extras[f'{side}_segments'].at[self.b, self.rows])

  def load(self, ref):
    """Its rows of its head."""
    return plgpu.load(ref.at[self.b, self.rows, self.h])

  def store(self, ref, value):
    """Its rows of its head."""
    at = ref.at[self.b, self.rows, self.h]
    plgpu.store(at, value.astype(ref.dtype))

  def loops(self, body, carry, *, steps=1):
    """body(masked, n, carry) for what it must look at, `steps` each."""
    ends = [steps * end for end in self._ends]
    parts = list(zip((True, False, True), ends, ends[1:], strict=False))
    if not self._extras:  # See `ranges`.
      parts = parts[1:] if self._side == 'q' else parts[:2]
    for masked, start, stop in parts:
      step = functools.partial(body, masked)
      carry = jax.lax.fori_loop(start, stop, step, carry)
    return carry

  def mask(self, scores, rows):
    """Scores [own rows, rows], -inf where the key is not visible."""
    own, other = (
      r.start + jax.lax.iota(jnp.int32, r.size) for r in (self.rows, rows)
    )
    own, other = own[:, None], other[None]
    q_row, k_row = (own, other) if self._side == 'q' else (other, own)
    visible = q_row >= k_row
    if 'window' in self._extras:
      visible &= q_row - k_row < self._extras['window'][0]
    if 'q_segments' in self._extras:
      name = 'k_segments' if self._side == 'q' else 'q_segments'
      segments = plgpu.load(self._extras[name].at[self.b, rows])
      visible &= self._own[:, None] == segments[None]
    return jnp.where(visible, scores, -jnp.inf)
