# SPDX-License-Identifier: Apache-2.0
"""Inputs of `ops.linear_cross_entropy`."""

import numpy as np

from ops import case


def _case(
  tokens: int,
  d_model: int,
  vocab: int,
  *,
  bias: bool = False,
  weightless: int = 0,
  zaya: bool = False,
) -> case.Case:
  def arguments(rng, dtype):
    draw = lambda *shape: rng.standard_normal(shape, np.float32)
    target = rng.integers(0, vocab, tokens).astype(np.int32)
    target[0], weight = vocab - 1, rng.random(tokens, np.float32)
    weight[:weightless] = 0
    head = draw(vocab, d_model).astype(dtype)
    x = 3 * d_model**-0.5 * draw(tokens, d_model)  # Logits of some units.
    bias_V = draw(vocab) if bias else None
    return (x.astype(dtype), head, target, weight, bias_V), {}

  product = 2.0 * tokens * d_model * vocab
  matrices = 2.0 * (tokens + vocab) * d_model
  return case.Case(
    name=f'{tokens}x{d_model}x{vocab}' + '_bias' * bias,
    arguments=arguments,
    gradients=(0, 1, 4) if bias else (0, 1),
    zaya=zaya,
    flops=(product, 3 * product),
    bytes=(matrices, 2 * matrices),
  )


CASES = (
  _case(8192, 2048, 262_272, zaya=True),
  _case(12, 8, 40),
  _case(21, 16, 50, bias=True, weightless=5),
  _case(7, 5, 16, weightless=6),
  _case(1, 8, 3),
  _case(20, 64, 640, weightless=3),
  _case(2, 64, 256),
  _case(9, 128, 320),
)
