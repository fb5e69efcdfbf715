# SPDX-License-Identifier: Apache-2.0
"""`ops.cca_prologue` by kernels for Hopper GPUs; see `hopper`.

`inputs` of the kernels, by name: 'x' [B, L, G, C], what is convolved: z on the
way forward, the gradient before the norm on the way back; 'kernel' [G, C, lags
* C] in the type of x; 'runs' of `hopper_runs.schedule`; forward 'bias' [G,
C], 'warmth' [K], the temperature, 'cos' and 'sin' [B, L, R]; for the gradient
of the kernel 'z', as x; where there are segments 'hidden' and 'cut' of
`_hidden`. L is a multiple of ROWS. The norm's gradient is left to Triton.
"""

from typing import Any

import jax
import jax.numpy as jnp

from ops import warp_groups
from ops.cca import (
  hopper,
  hopper_forward,
  hopper_inputs,
  hopper_kernel,
  hopper_runs,
  pallas,
)
from ops.once import once
from ops.persistent import processors
from ops.warp_groups import ROWS


def unsupported(z_BLZ, current, delayed, kernel_GCX, bias, t, cos_BLR, *_):
  """Why not, or None."""
  del current, delayed, bias, t
  _, channels, mixed = kernel_GCX.shape
  lags, rotated = mixed // channels, cos_BLR.shape[-1]
  if reason := warp_groups.unavailable():
    return reason
  if str(z_BLZ.dtype) not in ('bfloat16', 'float16'):
    return f'it takes bfloat16 or float16, not {z_BLZ.dtype}'
  if channels != hopper.CHANNELS or rotated != hopper_forward.ROTATED:
    return (
      f'it takes {hopper.CHANNELS} channels a head, {hopper_forward.ROTATED} '
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
  return pallas.prologue(_of_any_length, *inputs)


def _of_any_length(
  z_BLZ, kernel, bias, temperature, cos_BLR, sin_BLR, segments
):
  """Queries and keys, both [B, L, heads, C]."""
  length = z_BLZ.shape[1]
  # Rows behind the last one are seen by none before, and are cut off.
  pad = lambda a: jnp.pad(a, [(0, 0), (0, -length % ROWS), (0, 0)][: a.ndim])
  if segments is not None:
    segments = pad(segments.astype(jnp.int32))
  found = _queries_and_keys(
    *(pad(z_BLZ), kernel, bias, temperature),
    *(pad(cos_BLR), pad(sin_BLR), segments),
  )
  return tuple(x[:, :length] for x in found)


@jax.custom_vjp
def _queries_and_keys(*inputs):
  return _forward_rule(*inputs)[0]


def _forward_rule(z, kernel, bias, temperature, cos, sin, segments):
  groups, channels, _ = kernel.shape
  inputs = _convolution(z, kernel, temperature, segments, 1) | {
    'bias': bias.astype(jnp.float32).reshape(groups, channels),
    'warmth': temperature.astype(jnp.float32),
    'cos': cos,
    'sin': sin,
  }
  found = once(hopper_forward.forward(inputs, len(temperature)))
  saved = (z, kernel, temperature, cos, sin, segments, found)
  return (found['q'], found['k']), saved


def _backward_rule(saved, cotangents):
  z, kernel, temperature, cos, sin, segments, found = saved
  flat = lambda x: x.reshape(*x.shape[:2], -1)
  dy, d_bias, d_temperature = pallas.unnormalize(
    *(flat(found['q']), flat(found['unit']), found['scale']),
    *(kernel, temperature, cos, sin, *map(flat, cotangents)),
  )
  inputs = _convolution(dy, kernel, temperature, segments, -1)
  dz = hopper_inputs.of_inputs(inputs, len(temperature))
  groups, channels, mixed = kernel.shape
  inputs['z'] = _by_head(z, groups)
  del inputs['kernel'], inputs['runs']
  runs = max(1, min(z.shape[0] * z.shape[1] // ROWS, processors() // groups))
  parts = hopper_kernel.of_kernel(inputs, mixed // channels, runs)
  d_kernel = jnp.sum(parts, axis=0).astype(kernel.dtype)
  return flat(dz), d_kernel, d_bias, d_temperature, None, None, None


_queries_and_keys.defvjp(_forward_rule, _backward_rule)


def _convolution(x_BLZ, kernel, temperature, segments, sign):
  """What both ways need; `sign` is -1 on the way back."""
  (batch, length, _), (groups, channels, mixed) = x_BLZ.shape, kernel.shape
  kv_heads, lags = len(temperature), mixed // channels
  runs = hopper_runs.schedule(
    groups - kv_heads, kv_heads, batch * length // ROWS, lags, processors()
  )
  inputs = {
    'x': _by_head(x_BLZ, groups),
    'kernel': kernel.astype(x_BLZ.dtype),
    'runs': jnp.asarray(runs),
  }
  return inputs | _hidden(segments, lags, sign)


def _by_head(x_BLZ, groups):
  return x_BLZ.reshape(*x_BLZ.shape[:2], groups, -1)


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
