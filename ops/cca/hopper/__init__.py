# SPDX-License-Identifier: Apache-2.0
"""`ops.cca_prologue` by kernels for Hopper GPUs.

`inputs` of the kernels, by name: 'x', what is convolved: on the way forward the
projections, [B, L, G + K, C], of whose heads the last K hold values and are not
read; on the way back the gradient before the norm, [B, L, G, C]; 'kernel' [G,
C, lags * C] in the type of x; 'runs' of `runs.schedule`; forward 'bias' [G, C],
'warmth' [K], the temperature, 'cos' and 'sin' [B, L, R]; for the gradient of
the kernel 'z', the projections; where there are segments 'hidden' and 'cut' of
`_hidden`. L is a multiple of ROWS. The gradients of the norm and of the values
are left to Triton.
"""

from typing import Any

import jax
import jax.numpy as jnp

from ops.cca import api, triton
from ops.cca.hopper import forward, of_inputs, of_kernel, runs, shared
from ops.hopper import warp_groups
from ops.hopper.persistent import processors
from ops.hopper.warp_groups import ROWS
from ops.once import once


def unsupported(projected_BLP, kernel_GCX, bias, t, cos_BLR, *_):
  """Why not, or None."""
  del bias, t
  _, channels, mixed = kernel_GCX.shape
  lags, rotated = mixed // channels, cos_BLR.shape[-1]
  if reason := warp_groups.unavailable():
    return reason
  if str(projected_BLP.dtype) not in ('bfloat16', 'float16'):
    return f'it takes bfloat16 or float16, not {projected_BLP.dtype}'
  if channels not in shared.CHANNELS or rotated != forward.rotated(channels):
    known = ' or '.join(map(str, shared.CHANNELS))
    return (
      f'it takes {known} channels a head, half of them rotated, not {channels} '
      f'and {rotated}'
    )
  if lags not in (2, 3):  # Sums of more do not fit in the registers.
    return f'it takes 2 or 3 lags, not {lags}'
  if projected_BLP.size == 0:
    return 'there are no tokens'
  if projected_BLP.size >= 2**31:
    return f'{projected_BLP.size} numbers are more than 32 bits can count'
  return None


def cca_prologue(*inputs: Any) -> tuple[jax.Array, ...]:
  """See `ops.cca_prologue`."""
  projected_BLP, kernel, bias, temperature, *tables, segments, first = inputs
  length = projected_BLP.shape[1]
  # Rows behind the last one are seen by none before, and are cut off.
  pad = lambda a: jnp.pad(a, [(0, 0), (0, -length % ROWS), (0, 0)][: a.ndim])
  if segments is not None:
    segments = pad(segments.astype(jnp.int32))
  found = api.cca_prologue(
    *(_KERNELS, pad(projected_BLP), kernel, bias, temperature),
    *(*map(pad, tables), segments, first),
  )
  return tuple(x[:, :length] for x in found)


def _forward(projected, kernel, bias, temperature, cos, sin, segments):
  groups, channels, _ = kernel.shape
  given = _convolution(projected, kernel, temperature, segments, 1) | {
    'bias': bias.astype(jnp.float32).reshape(groups, channels),
    'warmth': temperature.astype(jnp.float32),
    'cos': cos,
    'sin': sin,
  }
  found = once(forward.forward(given, len(temperature)))
  return [found[name] for name in ('q', 'k', 'unit', 'scale')]


def _unnormalize(q, unit, scale, kernel, temperature, cos, sin, d_q, d_k):
  return triton.unnormalize(
    *(_flat(q), _flat(unit), scale, kernel, temperature, cos, sin),
    *(_flat(d_q), _flat(d_k)),
  )


def _backward(projected, dy, kernel, temperature, segments):
  groups, channels, mixed = kernel.shape
  given = _convolution(dy, kernel, temperature, segments, -1)
  d_projected = of_inputs.of_inputs(given, len(temperature))
  given['z'] = _by_head(projected, channels)
  del given['kernel'], given['runs']
  blocks = dy.shape[0] * dy.shape[1] // ROWS
  count = max(1, min(blocks, processors() // groups))
  return _flat(d_projected), of_kernel.of_kernel(
    given, mixed // channels, count
  )


def _of_values(*inputs):
  return triton.of_values(*inputs)


_KERNELS = api.Kernels(_forward, _unnormalize, _backward, _of_values)


def _convolution(x_BLX, kernel, temperature, segments, sign):
  """What both ways need; `sign` is -1 on the way back."""
  (batch, length, _), (groups, channels, mixed) = x_BLX.shape, kernel.shape
  kv_heads, lags = len(temperature), mixed // channels
  found = runs.schedule(
    groups - kv_heads, kv_heads, batch * length // ROWS, lags, processors()
  )
  given = {
    'x': _by_head(x_BLX, channels),
    'kernel': kernel.astype(x_BLX.dtype),
    'runs': jnp.asarray(found),
  }
  return given | _hidden(segments, lags, sign)


def _by_head(x_BLX, channels):
  return x_BLX.reshape(*x_BLX.shape[:2], -1, channels)


def _flat(x_BLGC):
  return x_BLGC.reshape(*x_BLGC.shape[:2], -1)


def _hidden(segments, lags, sign):
  """What a token does not see: 'hidden', 'cut'; empty without segments.

  Args:
    segments: [B, L] or None.
    lags: of the convolution; of lag 0 nothing is said.
    sign: 1: whether the token that many before is of another segment; -1: the
      one after. What lies outside of the row may be either.

  Returns:
    [lags - 1, B, L] int32, 1 for each such token, and [lags - 1, B, L / ROWS],
    1 where a block has one.
  """
  if segments is None:
    return {}
  hidden = [
    (segments != jnp.roll(segments, sign * lag, axis=1)).astype(jnp.int32)
    for lag in range(1, lags)
  ]
  hidden = jnp.stack(hidden)
  cut = hidden.reshape(*hidden.shape[:2], -1, ROWS).max(axis=-1)
  return {'hidden': hidden, 'cut': cut}
