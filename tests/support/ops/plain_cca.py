# SPDX-License-Identifier: Apache-2.0
"""What the kernels of CCA's prologue for Hopper GPUs mean, in jax.numpy."""

import jax.numpy as jnp

from ops.cca import reference


def forward(inputs, kv_heads):
  """See `forward.forward`."""
  x = _of_heads(inputs, 'x')
  y = _add_partners(x, kv_heads, 0.5, 0.5 / _group(x, kv_heads)) + 0.5 * x
  y += inputs['bias'][None, None]
  for lag, matrix in enumerate(_matrices(inputs)):
    past = jnp.einsum('BLGC,GCX->BLGX', _shifted(inputs, 'x', -lag), matrix)
    y += _seen(inputs, past, lag)
  square = jnp.sum(jnp.square(y), axis=-1)
  scale = (
    jnp.maximum(square, reference.NORM_EPS**2) ** -0.5 * y.shape[-1] ** 0.5
  )
  unit = reference.rotate(y * scale[..., None], inputs['cos'], inputs['sin'])
  heads = x.shape[2] - kv_heads
  narrow = lambda a: a.astype(inputs['x'].dtype)
  return {
    'q': narrow(unit[:, :, :heads]),
    'k': narrow(unit[:, :, heads:] * inputs['warmth'][None, None, :, None]),
    'unit': narrow(unit[:, :, heads:]),
    'scale': scale.swapaxes(1, 2),
  }


def of_inputs(inputs, kv_heads):
  """See `of_inputs.of_inputs`."""
  x = _wide(inputs['x'])
  dx = _add_partners(x, kv_heads, 0.5 / _group(x, kv_heads), 0.5) + 0.5 * x
  for lag, matrix in enumerate(_matrices(inputs)):
    later = _shifted(inputs, 'x', lag)
    dx += _seen(inputs, jnp.einsum('BLGX,GCX->BLGC', later, matrix), lag)
  nothing = jnp.full((*dx.shape[:2], kv_heads, dx.shape[3]), jnp.nan)
  return jnp.concatenate([dx, nothing], axis=2).astype(inputs['x'].dtype)


def of_kernel(inputs, lags, runs):
  """See `of_kernel.of_kernel`; the run is one."""
  del runs
  parts = [
    jnp.einsum(
      'BLGC,BLGX->GCX',
      _of_heads(inputs, 'z')[:, :, : inputs['x'].shape[2]],
      _seen(inputs, _shifted(inputs, 'x', lag), lag),
    )
    for lag in range(lags)
  ]
  return jnp.concatenate(parts, axis=-1)[None]


def unnormalize(q, unit, scale, kernel, temperature, cos, sin, d_q, d_k):
  """See `triton.unnormalize`."""
  heads = lambda *x: _wide(jnp.concatenate(x, axis=-1)).reshape(
    *q.shape[:2], -1, kernel.shape[1]
  )
  units, grads = heads(q, unit), heads(d_q, d_k)
  along = jnp.sum(units * grads, axis=-1, keepdims=True)
  warmth = jnp.concatenate(
    [jnp.ones(len(kernel) - len(temperature)), temperature]
  )
  dy = grads - units * along / kernel.shape[1]
  dy *= (scale * warmth[None, :, None]).swapaxes(1, 2)[..., None]
  dy = reference.rotate(dy, cos, -sin).reshape(*q.shape[:2], -1)
  d_temperature = along.sum(axis=(0, 1, 3))[-len(temperature) :]
  return dy.astype(q.dtype), dy.sum(axis=(0, 1)), d_temperature


def _wide(x):
  return x.astype(jnp.float32)


def _of_heads(inputs, name):
  """Those that are convolved: values lie behind them."""
  heads = len(inputs['kernel']) if 'kernel' in inputs else None
  return _wide(inputs[name])[:, :, :heads]


def _group(x, kv_heads):
  """Query heads of a key head."""
  return x.shape[2] // kv_heads - 1


def _matrices(inputs):
  """[G, C, C] of each lag."""
  kernel = _wide(inputs['kernel'])
  return jnp.split(kernel, kernel.shape[2] // kernel.shape[1], axis=2)


def _shifted(inputs, name, later):
  """The tokens that many later on, 0 outside of the row."""
  x = _of_heads(inputs, name)
  rows = jnp.arange(x.shape[1]) + later
  inside = (rows >= 0) & (rows < x.shape[1])
  return jnp.where(inside[None, :, None, None], jnp.roll(x, -later, axis=1), 0)


def _seen(inputs, x, lag):
  """0 where the token at `lag` is hidden."""
  if not lag or 'hidden' not in inputs:
    return x
  return jnp.where(inputs['hidden'][lag - 1][..., None, None] == 1, 0, x)


def _add_partners(x, kv_heads, of_key, of_queries):
  """What heads that share a mean give to each other."""
  q, k = x[:, :, :-kv_heads], x[:, :, -kv_heads:]
  group = _group(x, kv_heads)
  sums = q.reshape(*q.shape[:2], kv_heads, group, -1).sum(axis=3)
  return jnp.concatenate(
    [of_key * jnp.repeat(k, group, axis=2), of_queries * sums], axis=2
  )


def of_values(dv, d_projected, kernel, temperature, segments):
  """See `api.Kernels`."""
  del temperature
  current, delayed = jnp.split(dv, 2, axis=-1)
  later = jnp.pad(delayed[:, 1:], ((0, 0), (0, 1), (0, 0)))
  if segments is not None:
    same = jnp.pad(segments[:, 1:] == segments[:, :-1], ((0, 0), (0, 1)))
    later = jnp.where(same[..., None], later, 0)
  first = kernel.shape[0] * kernel.shape[1]  # Behind the heads of z.
  made = jnp.concatenate([current, later], axis=-1)
  return d_projected.at[..., first:].set(made.astype(d_projected.dtype))
