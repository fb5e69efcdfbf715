# SPDX-License-Identifier: Apache-2.0
"""`ops.cca_prologue` by kernels for Hopper GPUs.

`inputs` of the kernels, by name: 'x' [B, L, G, C], what is convolved: z on the
way forward, the gradient before the norm on the way back; 'kernel' [G, C, lags
* C] in the type of x; 'runs' of `runs.schedule`; forward 'bias' [G,
C], 'warmth' [K], the temperature, 'cos' and 'sin' [B, L, R]; for the gradient
of the kernel 'z', as x; where there are segments 'hidden' and 'cut' of
`_hidden`. L is a multiple of ROWS. The norm's gradient is left to Triton.
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


def unsupported(z_BLZ, current, delayed, kernel_GCX, bias, t, cos_BLR, *_):
  """Why not, or None."""
  del current, delayed, bias, t
  _, channels, mixed = kernel_GCX.shape
  lags, rotated = mixed // channels, cos_BLR.shape[-1]
  if reason := warp_groups.unavailable():
    return reason
  if str(z_BLZ.dtype) not in ('bfloat16', 'float16'):
    return f'it takes bfloat16 or float16, not {z_BLZ.dtype}'
  if channels != shared.CHANNELS or rotated != forward.ROTATED:
    return (
      f'it takes {shared.CHANNELS} channels a head, {forward.ROTATED} '
      f'of them rotated, not {channels} and {rotated}'
    )
  if lags not in (2, 3):  # Sums of more do not fit in the registers.
    return f'it takes 2 or 3 lags, not {lags}'
  if z_BLZ.size == 0:
    return 'there are no tokens'
  if z_BLZ.size >= 2**31:
    return f'{z_BLZ.size} numbers are more than 32 bits can count'
  return None


def cca_prologue(*inputs: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
  """See `ops.cca_prologue`."""
  return api.with_values(_of_any_length, *inputs)


def _of_any_length(
  z_BLZ, kernel, bias, temperature, cos_BLR, sin_BLR, segments
):
  """Queries and keys, both [B, L, heads, C]."""
  length = z_BLZ.shape[1]
  # Rows behind the last one are seen by none before, and are cut off.
  pad = lambda a: jnp.pad(a, [(0, 0), (0, -length % ROWS), (0, 0)][: a.ndim])
  if segments is not None:
    segments = pad(segments.astype(jnp.int32))
  found = api.queries_and_keys(
    *(_KERNELS, pad(z_BLZ), kernel, bias, temperature),
    *(pad(cos_BLR), pad(sin_BLR), segments),
  )
  return tuple(x[:, :length] for x in found)


def _forward(z, kernel, bias, temperature, cos, sin, segments):
  groups, channels, _ = kernel.shape
  given = _convolution(z, kernel, temperature, segments, 1) | {
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


def _backward(z, dy, kernel, temperature, segments):
  groups, channels, mixed = kernel.shape
  given = _convolution(dy, kernel, temperature, segments, -1)
  dz = of_inputs.of_inputs(given, len(temperature))
  given['z'] = _by_head(z, groups)
  del given['kernel'], given['runs']
  count = max(1, min(z.shape[0] * z.shape[1] // ROWS, processors() // groups))
  return _flat(dz), of_kernel.of_kernel(given, mixed // channels, count)


_KERNELS = api.Kernels(_forward, _unnormalize, _backward)


def _convolution(x_BLZ, kernel, temperature, segments, sign):
  """What both ways need; `sign` is -1 on the way back."""
  (batch, length, _), (groups, channels, mixed) = x_BLZ.shape, kernel.shape
  kv_heads, lags = len(temperature), mixed // channels
  found = runs.schedule(
    groups - kv_heads, kv_heads, batch * length // ROWS, lags, processors()
  )
  given = {
    'x': _by_head(x_BLZ, groups),
    'kernel': kernel.astype(x_BLZ.dtype),
    'runs': jnp.asarray(found),
  }
  return given | _hidden(segments, lags, sign)


def _by_head(x_BLZ, groups):
  return x_BLZ.reshape(*x_BLZ.shape[:2], groups, -1)


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
