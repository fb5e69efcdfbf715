# SPDX-License-Identifier: Apache-2.0
"""Attention of cuDNN, on NVIDIA, for rows of one document each.

Packed documents it takes too, but our own kernel is faster on them: on an H200
0.64 ms forward and back where cuDNN takes 1.02, and without the choice, at run
time, of what cuDNN can do with a batch.
"""

import jax

from ops import dispatch
from ops.attention import api


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
    return 'rows of several documents are faster in our own kernel'
  return api.unsupported(q_BLHC, k_BSKC, options.get('offset', 0))


def attention(q_BLHC, k_BSKC, v_BSKC, *, window=None, **_) -> jax.Array:
  """See `ops.attention`."""
  return jax.nn.dot_product_attention(
    q_BLHC,
    k_BSKC,
    v_BSKC,
    is_causal=True,
    local_window_size=None if window is None else (window - 1, 0),
    implementation='cudnn',
  )
