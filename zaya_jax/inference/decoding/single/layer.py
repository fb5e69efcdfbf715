# SPDX-License-Identifier: Apache-2.0
"""A layer for one token of one text.

XLA makes dozens of kernels of it, most of which take as long to begin as to
run. Here are nine, each with as many programs as a GPU has room for.

Axis letters: those of `decoding.network`.
"""

from typing import Any

import jax
import jax.numpy as jnp

from ops import dispatch
from ops.triton import backend
from zaya_jax import config as config_lib
from zaya_jax.inference.decoding.single import attention, cca, experts
from zaya_jax.model import layers

PLATFORMS = ('cuda',)  # Where it was timed.
_WIDEST = 2048  # Of a row of a matrix: it is in registers.
# Of a cache. On an H200 a step of ZAYA1-8B's width with 8 layers took 0.76 of
# XLA's time at 1,024 tokens of context and 1.12 of it at 32,768.
_LONGEST = 8192
_NARROWEST = 16  # Head that matrix units multiply.


def unsupported(
  config: config_lib.ModelConfig, weights: dict[str, Any], size: int
) -> str | None:
  """Why this model cannot run so here with a cache of `size`, or None."""
  here = dispatch.platform()
  if here not in PLATFORMS:
    return f'it is for {" and ".join(PLATFORMS)}'
  if reason := backend.unavailable():
    return reason
  if config.attention != 'cca' or config.router != 'mlp':
    return 'it is for CCA and the router of ZAYA1 alone'
  if config.attention_bias or not (config.conv_context and config.d_rope):
    return 'there are biases, or no convolution or rotation'
  first = weights['layers'][0]
  matrices = (*first['experts'].values(), first['attn']['qkv'])
  if not all(isinstance(w, jax.Array) for w in matrices):
    return 'matrices are of few bits'
  if size > _LONGEST:
    return f'a cache of more than {_LONGEST} tokens has too few programs'
  width = config.num_heads * config.head_dim
  if max(config.d_model, config.d_expert, width) > _WIDEST:
    return f'rows of matrices are longer than {_WIDEST}'
  if config.head_dim & (config.head_dim - 1):
    return f'heads of {config.head_dim} are no power of two'
  if here != 'cpu' and config.head_dim < _NARROWEST:
    return f'heads are narrower than {_NARROWEST}'
  if here != 'cpu' and config.dtype == 'float32':
    return 'matrix units multiply 16 bits'
  return None


def every(
  config: config_lib.ModelConfig,
  weights: dict[str, Any],
  x_11D: jax.Array,
  cache: Any,
  real_1: jax.Array | None,
) -> tuple[jax.Array, list[tuple[jax.Array, ...]]]:
  """All layers.

  Args:
    config: of the model.
    weights: of `network.prepare`.
    x_11D: the residual stream, float32.
    cache: the `Cache` of the tokens before. Padding is before them alone.
    real_1: whether there is a token; None: there is.

  Returns:
    [1, 1, D] behind the final norm, in the compute type, and of each layer
    what the cache keeps: k, v [1, K, S, C], conv [1, T, Z], delayed [1, X].
  """
  dtype = layers.compute_dtype(config)
  x_D, state_R, states = x_11D[0, 0], None, []
  for n, w in enumerate(weights['layers']):
    theta, window = config.reach(n)
    frequency = layers.rope_frequency(config.d_rope, theta)
    place = attention.Place(
      length_1=cache.length.reshape(1),
      position_1=cache.position,
      frequency_R=jnp.concatenate([frequency, frequency]),
      layer=n,
      window=window,
    )
    x_D, state_R, (k, v, *new) = run(
      config, w, x_D, state_R, cache, place, dtype
    )
    if real_1 is not None:
      old = cache.conv[n, 0], cache.delayed[n, 0]
      new = [jnp.where(real_1[0], a, b) for a, b in zip(new, old, strict=True)]
    states.append((k, v, *(a[None] for a in new)))
  norm_D = weights['layers'][-1]['merges']['moe'][-1]
  h_11D = layers.rms_norm(x_D[None, None], norm_D, config.norm_eps, dtype)
  return h_11D, states


def run(
  config: config_lib.ModelConfig,
  w: dict[str, Any],
  x_D: jax.Array,
  state_R: jax.Array | None,
  cache: Any,
  place: attention.Place,
  dtype: Any,
) -> tuple[jax.Array, jax.Array, tuple[jax.Array, ...]]:
  """The stream and the state of the router behind a layer.

  Args:
    config: of the model.
    w: of the layer, of `network.prepare`.
    x_D: the residual stream, float32.
    state_R: of the router of the layer before, float32; None: of the first.
    cache: the `Cache` of the tokens before.
    place: of the token.
    dtype: of the arithmetic.

  Returns:
    [D], [R], and what the cache keeps of the layer: keys, values, [T, Z], [X].
  """
  n = place.layer
  attn, router, eps = w['attn'], w['router'], config.norm_eps
  z_F = cca.project(x_D, w['attn_norm'], attn['qkv'], eps=eps, dtype=dtype)
  y_Z, conv_TZ, delayed_X = cca.convolve(
    *(z_F, cache.conv, n, attn['kernel'], attn['kernel_bias']),
    config.num_heads,
  )
  values, rows = (z_F, cache.delayed), (cache.k[n], cache.v[n])
  k, v, *parts = attention.attend(y_Z, values, attn['temperature'], place, rows)
  vectors = w['merges']['attn']
  x_D = attention.out(parts, attn['out'], vectors, x_D, dtype)
  state_R, h_D = experts.state(
    x_D, vectors, router, state_R, eps=eps, dtype=dtype
  )
  a_R = experts.hidden(
    state_R, router.fc1[...], router.fc1_bias[...], router.norm[...], eps
  )
  a_R = experts.hidden(a_R, router.fc2[...], router.fc2_bias[...], None, eps)
  made = experts.gate_up(a_R, router, h_D, w['experts']['gate_up'])
  x_D = experts.down(
    made, w['experts']['down'], w['merges']['moe'], x_D, h_D, config.skip
  )
  return x_D, state_R, (k, v, conv_TZ, delayed_X)
