# SPDX-License-Identifier: Apache-2.0
"""Attention of cuDNN, on NVIDIA.

Rows without segments, or of one each, go to its causal kernel. Packed documents
go to its packed layout, which takes the first row and the length of each. What
a batch has is known at run time: if a row has more than `_DOCUMENTS`, or if a
number comes again after another (cuDNN would keep the two apart), our own
kernel runs. The choice costs one wait of the host for the device.
"""

import functools

import jax
import jax.numpy as jnp
from jax._src.cudnn import fused_attention_stablehlo as fused

from ops import dispatch
from ops.attention import blocked, pallas

# Of a row, at most. cuDNN starts programs for as many documents of full length,
# and keeps a log-sum-exp of each: 4 * H * L bytes a document and sequence.
_DOCUMENTS = 32
# Earlier ones looked for keys at the offsets of queries, which is wrong where
# there are fewer heads of keys (jax pull request 39521).
_JAX = (0, 11, 2)


def unsupported(q_BLHC, k_BSKC, v_BSKC, **options) -> str | None:
  """Why this engine cannot run these inputs, or None."""
  channels, window = q_BLHC.shape[-1], options.get('window')
  types = sorted({str(a.dtype) for a in (q_BLHC, k_BSKC, v_BSKC)})
  if dispatch.platform() != 'cuda':
    return f'cuDNN is not for {dispatch.platform()}'
  if types not in (['bfloat16'], ['float16']):
    return f'cuDNN takes bfloat16 or float16, not {types}'
  if channels % 8 or channels > 128:
    return f'cuDNN takes a multiple of 8 up to 128 channels, not {channels}'
  if window is not None and not isinstance(window, int):
    return 'cuDNN must know the window when it is compiled'
  if options.get('q_segments_BL') is not None:
    reason = _cannot_pack(q_BLHC, k_BSKC, v_BSKC)
    if reason is not None:
      return reason
  return blocked.unsupported(q_BLHC, k_BSKC, options.get('offset', 0))


def _cannot_pack(q_BLHC, k_BSKC, v_BSKC):
  if q_BLHC.shape[2] != k_BSKC.shape[2] and jax.__version_info__ < _JAX:
    return (
      f'jax {jax.__version__} misplaces the keys of packed documents in cuDNN '
      f'where heads share them; {".".join(map(str, _JAX))} does not'
    )
  capability = getattr(jax.devices()[0], 'compute_capability', '9.0')
  if float(capability) < 9:
    return f'cuDNN packs documents from Hopper (9.0) on, not on {capability}'
  return pallas.unsupported(q_BLHC, k_BSKC, v_BSKC)


def attention(
  q_BLHC,
  k_BSKC,
  v_BSKC,
  *,
  q_segments_BL=None,
  k_segments_BS=None,
  offset=0,
  window=None,
) -> jax.Array:
  """See `ops.attention`."""
  del offset
  qkv = q_BLHC, k_BSKC, v_BSKC
  plain = functools.partial(
    jax.nn.dot_product_attention,
    is_causal=True,
    local_window_size=None if window is None else (window - 1, 0),
    implementation='cudnn',
  )
  if q_segments_BL is None:
    return plain(*qkv)
  starts_BN, lengths_BM, fits = documents(
    q_segments_BL.astype(jnp.int32), min(_DOCUMENTS, q_BLHC.shape[1])
  )
  packed = functools.partial(
    fused.dot_product_attention,
    q_seqlen=lengths_BM,
    kv_seqlen=lengths_BM,
    q_offsets=starts_BN,
    kv_offsets=starts_BN,
    scale=q_BLHC.shape[-1] ** -0.5,
    mask_type=fused.MaskType.PADDING_CAUSAL,
    sliding_window_length=window,
  )
  own = functools.partial(
    pallas.attention,
    q_segments_BL=q_segments_BL,
    k_segments_BS=k_segments_BS,
    window=window,
  )
  fits &= jnp.all(q_segments_BL == k_segments_BS)
  single = fits & jnp.all(lengths_BM[:, 0] == q_BLHC.shape[1])
  kind = jnp.where(single, 0, jnp.where(fits, 1, 2))
  return jax.lax.switch(kind, (plain, packed, own), *qkv)


def documents(
  segments_BL: jax.Array, most: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """What follows each other in each row.

  Args:
    segments_BL: [B, L] int32; equal ones that follow each other are a document.
    most: M, documents of a row.

  Returns:
    First rows [B, M + 1] and lengths [B, M], int32, -1 where there is none, and
    whether that is all: no row has more, and no number comes again.
  """
  batch, length = segments_BL.shape
  before_BL = jnp.roll(segments_BL, 1, axis=1)
  first_BL = (segments_BL != before_BL).at[:, 0].set(True)
  order_BL = jnp.cumsum(first_BL, axis=1) - 1
  # The first row of each in its order; others are dropped behind the end.
  place_BL = jnp.where(first_BL, order_BL, most + 1)
  ends_BN = jnp.full((batch, most + 1), length, jnp.int32)
  ends_BN = ends_BN.at[jnp.arange(batch)[:, None], place_BL].set(
    jnp.arange(length)[None], mode='drop'
  )
  starts_BM, none_BM = ends_BN[:, :-1], ends_BN[:, :-1] == length
  lengths_BM = jnp.where(none_BM, -1, ends_BN[:, 1:] - starts_BM)
  number_BM = jnp.take_along_axis(
    segments_BL, jnp.minimum(starts_BM, length - 1), axis=1
  )
  same_BMM = number_BM[:, :, None] == number_BM[:, None]
  same_BMM &= ~(none_BM[:, :, None] | none_BM[:, None])
  again = jnp.sum(same_BMM) > jnp.sum(~none_BM)
  fits = jnp.all(order_BL[:, -1] < most) & ~again
  # The end of a row is the start of the next one, or of nothing.
  starts_BN = jnp.pad(
    jnp.where(none_BM, -1, starts_BM), ((0, 0), (0, 1)), constant_values=-1
  )
  return starts_BN, lengths_BM, fits
