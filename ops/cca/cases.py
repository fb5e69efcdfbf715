# SPDX-License-Identifier: Apache-2.0
"""Inputs of `ops.cca_prologue`."""

import numpy as np

from ops import case

# Where documents begin, as shares of a row.
_CUTS = (0.3, 0.31, 0.7)


def _case(
  name: str,
  shape: tuple[int, int],
  heads: tuple[int, int],
  channels: int,
  rotated: int,
  *,
  lags: int = 3,
  packed: bool = True,
  bias: bool = False,
  zaya: bool = False,
) -> case.Case:
  batch, length = shape
  groups, kv_heads = sum(heads), heads[1]
  width = kv_heads * channels // 2

  def arguments(rng, dtype):
    draw = lambda *s: rng.standard_normal(s).astype(np.float32)
    kernel = draw(groups, channels, lags * channels) / channels**0.5
    angle = draw(batch, length, rotated // 2)
    angle = np.concatenate([angle, angle], axis=-1)
    rows = np.arange(length)
    starts = [int(cut * length) for cut in _CUTS]
    segments = sum((rows >= start).astype(np.int32) for start in starts)
    projected = [
      draw(batch, length, part).astype(dtype)
      for part in (groups * channels, width, width)
    ]
    arrays = (
      np.concatenate(projected, axis=-1),
      kernel,
      draw(groups * channels),
      1 + draw(kv_heads),
      np.cos(angle),
      np.sin(angle),
      np.tile(segments, (batch, 1)) if packed else None,
      draw(width) if bias else None,
    )
    return arrays, {}

  tokens = batch * length
  mixed = 2.0 * tokens * groups * channels**2 * lags
  # Channels of z, of both values, of the results, and half of both tables.
  read = 2.0 * (groups + kv_heads) * channels + 4.0 * rotated
  written = 2.0 * (groups + kv_heads) * channels
  return case.Case(
    name=name,
    arguments=arguments,
    gradients=(0, 1, 2, 3, *([7] if bias else [])),
    zaya=zaya,
    flops=(mixed, 3 * mixed),
    # Back: the inputs and the results' gradients, then the inputs' gradients.
    bytes=(tokens * (read + written), tokens * (2 * read + 3 * written)),
  )


CASES = (
  _case('zaya', (4, 4096), (8, 2), 128, 64, zaya=True),
  _case('small', (2, 37), (4, 2), 32, 16),
  _case('short', (3, 1), (2, 1), 16, 8, packed=False),
  _case('one_group', (1, 70), (1, 1), 16, 16, packed=False, bias=True),
  _case('no_rotation', (1, 9), (4, 2), 16, 0, lags=2),
  _case('odd', (2, 5), (6, 2), 6, 2, lags=4, bias=True),
  _case('half', (1, 21), (2, 1), 64, 32),
  # Of as many channels as the kernels for Hopper GPUs take.
  _case('wide', (2, 37), (2, 1), 128, 64),
  _case('wide_row', (2, 37), (2, 1), 128, 64, packed=False, lags=2),
  _case('wide_groups', (1, 9), (4, 2), 128, 64, bias=True),
)
