# SPDX-License-Identifier: Apache-2.0
"""Inputs of `ops.attention`."""

from typing import Any

import numpy as np

from ops import case


def documents(*lengths: int) -> np.ndarray:
  """[1, L] int32: 1 of the first length, 2 of the second, ..."""
  return np.repeat(np.arange(len(lengths), dtype=np.int32) + 1, lengths)[None]


def _case(
  name: str,
  batch: int,
  length: int,
  heads: tuple[int, int] = (8, 2),
  channels: int = 128,
  *,
  segments: np.ndarray | None = None,
  window: int | None = None,
  traced: bool = False,
  zaya: bool = False,
) -> case.Case:
  def arguments(rng, dtype):
    draw = lambda count: rng.standard_normal(
      (batch, length, count, channels), np.float32
    ).astype(dtype)
    options: dict[str, Any] = {'window': np.int32(window) if traced else window}
    if segments is not None:
      rows = np.broadcast_to(segments, (batch, length))
      options |= {'q_segments_BL': rows, 'k_segments_BS': rows}
    return tuple(draw(count) for count in (heads[0], *heads[1:] * 2)), options

  pairs = batch * length * (length + 1) / 2
  if segments is not None:  # Documents that follow each other.
    counts = np.unique(segments, return_counts=True)[1].astype(float)
    pairs = batch * float(np.sum(counts * (counts + 1) / 2))
  products = 2.0 * pairs * heads[0] * channels
  # Twice: queries, keys, values and results; then all that and gradients.
  once = 2.0 * batch * length * channels * 2 * sum(heads)
  return case.Case(
    name=name,
    arguments=arguments,
    gradients=(0, 1, 2),
    zaya=zaya,
    # Two products forward, five back.
    flops=(2 * products, 7 * products),
    bytes=(once, 3 * once),
  )


def _small(name, **options):
  return _case(name, 2, 70, (4, 2), 16, **options)


def _wide(name, batch=1, **options):
  """Of as many channels as the kernels for Hopper GPUs take."""
  return _case(name, batch, 300, (2, 1), 128, **options)


_PACKED = documents(1000, 300, 1700, 40, 500, 556)

CASES = (
  _case('4x4096', 4, 4096, zaya=True),
  _case('1x32768', 1, 32768, zaya=True),
  _case('4x4096_documents', 4, 4096, segments=_PACKED, zaya=True),
  _case('two_rows', 1, 2, (1, 1), 16),
  _case('groups_of_three', 1, 64, (3, 1), 32),
  _case('half', 1, 40, (2, 1), 64),
  # Of one shape: what is compiled for one serves the others.
  _small('blocks_and_a_rest'),
  _small('window', window=20),
  _small('documents', segments=documents(40, 1, 29)),
  _small(
    'documents_traced_window', segments=documents(64, 6), window=9, traced=True
  ),
  _small('numbers_come_again', segments=np.arange(70)[None] % 3),
  _wide('wide', batch=2),
  _wide('wide_window', window=150),
  _wide('wide_documents', segments=documents(40, 1, 200, 59)),
  _wide('wide_numbers_come_again', segments=np.arange(300)[None] // 50 % 3),
)
