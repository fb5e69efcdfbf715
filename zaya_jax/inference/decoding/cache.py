# SPDX-License-Identifier: Apache-2.0
"""What decoding keeps of the tokens it has seen."""

import dataclasses

import jax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Cache:
  """The state of a batch.

  The large arrays are one for each layer, so that each is updated in place;
  the small ones are one for all layers, so that few are copied.

  Attributes:
    k: of each layer [B, K, S, C] keys, rotated.
    v: of each layer [B, K, S, C] values.
    conv: [N, B, conv_context, d_qk] last queries and keys before convolution.
    delayed: [N, B, K * C / 2] delayed value projection of the last token.
    length: int32 scalar, tokens seen; the same for every row of the batch.
    valid: [B, S] bool, False for padding.
    position: [B] int32, the position of the next token of each row.
  """

  k: tuple[jax.Array, ...]
  v: tuple[jax.Array, ...]
  conv: jax.Array
  delayed: jax.Array
  length: jax.Array
  valid: jax.Array
  position: jax.Array
