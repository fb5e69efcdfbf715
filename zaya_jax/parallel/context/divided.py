# SPDX-License-Identifier: Apache-2.0
"""What a layer asks of other devices where they share the tokens of each row.

Inside of `mesh.on_each`; rows are in zig-zag order (`zigzag`). Axis letters: B
sequences, L rows of this device, n devices, T tokens that convolutions look
back, H query heads, K key/value heads, C channels of a head, X features.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from zaya_jax.parallel import mesh
from zaya_jax.parallel.context import gather, halo, ring_attention

_AXIS = 'context'  # Of the mesh.
_ATTENTION: dict[str, Callable[..., jax.Array]] = {
  'gather': gather.attention,
  'ring': ring_attention.attention,
}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Divided:
  """What all layers need to know of the tokens on other devices.

  Attributes:
    before: [B, 2, T] int, segments of the tokens before each of the two chunks.
    segments: [B, n * L], the tokens that attend to each other have the same;
      of all devices. None: all have.
    mode: 'gather' all keys, or pass them on in a 'ring'.
  """

  before: jax.Array
  segments: jax.Array | None
  mode: str = dataclasses.field(metadata={'static': True})

  def look_back(
    self,
    f: Callable[..., Any],
    x_BLX: jax.Array,
    segments_BL: jax.Array | None,
    *here_BLX: jax.Array,
  ) -> Any:
    """`f` of rows and segments, which looks back T tokens; see `halo.apply`."""
    if segments_BL is None:
      segments_BL = jnp.zeros(x_BLX.shape[:2], jnp.int32)
    return halo.apply(f, x_BLX, segments_BL, self.before, *here_BLX, axis=_AXIS)

  def attention(
    self,
    q_BLHC: jax.Array,
    k_BLKC: jax.Array,
    v_BLKC: jax.Array,
    window: jax.Array | int | None,
  ) -> jax.Array:
    """[B, L, H, C], `ops.attention` of the whole rows."""
    return _ATTENTION[self.mode](
      q_BLHC,
      k_BLKC,
      v_BLKC,
      axis=_AXIS,
      segments_BS=self.segments,
      window=window,
    )


def make(
  segments_BL: jax.Array,
  attend_segments_BL: jax.Array | None,
  count: int,
  mode: str,
) -> Divided | None:
  """Gathers once what all layers need; None on a mesh that divides no row.

  Args:
    segments_BL: [B, L] int, the document of each token.
    attend_segments_BL: [B, L], the same for tokens that attend to each other;
      None: all.
    count: T.
    mode: of `Divided`.
  """
  if mesh.size(_AXIS) == 1:
    return None
  if attend_segments_BL is not None:
    attend_segments_BL = jax.lax.all_gather(
      attend_segments_BL, _AXIS, axis=1, tiled=True
    )
  return Divided(
    before=halo.segments(segments_BL, count, axis=_AXIS),
    segments=attend_segments_BL,
    mode=mode,
  )
