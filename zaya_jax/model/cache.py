# SPDX-License-Identifier: Apache-2.0
"""What decoding keeps of the tokens it has seen."""

import dataclasses

import jax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerCache:
  """The state of one layer.

  Attributes:
    k: [B, K, S, C] keys, rotated.
    v: [B, K, S, C] values.
    conv: [B, conv_context, d_qk] last queries and keys before convolution.
    delayed: [B, K * C / 2] delayed value projection of the last token.
  """

  k: jax.Array
  v: jax.Array
  conv: jax.Array
  delayed: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Cache:
  """The state of a batch.

  Attributes:
    layers: of each layer.
    length: int32 scalar, tokens seen; the same for every row of the batch.
    valid: [B, S] bool, False for padding.
    position: [B] int32, the position of the next token of each row.
  """

  layers: tuple[LayerCache, ...]
  length: jax.Array
  valid: jax.Array
  position: jax.Array
