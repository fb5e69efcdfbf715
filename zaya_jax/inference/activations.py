# SPDX-License-Identifier: Apache-2.0
"""What every submodule of our own model gives, under the kit's names.

Layers run one by one, not scanned, and each submodule by its own function;
`logits` and `decode.logits` come from the model as it is used. Axis letters as
in `model.cca`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ops.cca import reference as cca_ops
from zaya_jax import config as config_lib
from zaya_jax.inference.decoding import network
from zaya_jax.model import block as block_lib
from zaya_jax.model import cca, layers, moe, packed, zaya


def outputs(
  config: config_lib.ModelConfig,
  params: dict[str, Any],
  buffers: dict[str, Any],
  tokens_BL: np.ndarray,
  mask_BL: np.ndarray,
  prompt: int | None = None,
) -> dict[str, np.ndarray]:
  """Runs a batch.

  Args:
    config: the network.
    params: tree of `zaya.init`.
    buffers: tree of `zaya.init`.
    tokens_BL: [B, L] int.
    mask_BL: [B, L], 0 for padding, on the left.
    prompt: tokens that decoding is given at once; None: no decoding.

  Returns:
    Arrays by name. Left out are values that our model does not form: both
    convolutions are one, and heads and router logits do not leave a function.
  """
  arrays = (params, buffers, jnp.asarray(tokens_BL), jnp.asarray(mask_BL, bool))
  # Ampere and later GPUs multiply float32 in 10 bits unless told otherwise.
  with jax.default_matmul_precision('highest'):
    # New functions, so that nothing traced before is used again.
    found = jax.jit(functools.partial(forward, config))(*arrays)
    if prompt is not None:
      found['decode.logits'] = _decode(config, *arrays, prompt)
  return {name: np.asarray(value) for name, value in found.items()}


def forward(
  config: config_lib.ModelConfig,
  params: dict[str, Any],
  buffers: dict[str, Any],
  tokens_BL: jax.Array,
  mask_BL: jax.Array,
) -> dict[str, jax.Array]:
  """All that `outputs` gives but decoding, for use inside of jit."""
  model = zaya.bind(config, packed.whole(config, params), buffers)
  positions = jnp.maximum(jnp.cumsum(mask_BL, axis=1) - 1, 0)
  full, sliding = (
    layers.rope_table(positions, config.d_rope, theta)
    for theta in (config.rope_theta, config.sliding_rope_theta)
  )
  context = cca.Context(
    mask=mask_BL,
    segments=None,
    attend_segments=mask_BL,
    rope=(full, sliding),
  )
  config.check_published('what lists activations')
  x_BLD = model.embed[...][tokens_BL]
  x_BLD = layers.affine(x_BLD, model.input_scale, model.input_bias)
  found = {'embed': x_BLD}
  state_BLR = jnp.zeros((*x_BLD.shape[:2], config.d_router))
  for n in range(config.num_layers):
    block = jax.tree.map(lambda leaf, n=n: leaf[n], model.layers)
    slides = n in config.sliding_layers
    values = _layer(block, x_BLD, state_BLR, context, slides)
    x_BLD, state_BLR = values['moe.merge'], values['router.state']
    found |= {f'layers.{n}.{name}': value for name, value in values.items()}
  dtype = layers.compute_dtype(config)
  found['final.norm'] = layers.rms_norm(
    x_BLD, model.final_norm, config.norm_eps, dtype
  )
  found['logits'] = model(tokens_BL, attention_mask=mask_BL)
  return found


def _layer(
  block: block_lib.Block,
  x_BLD: jax.Array,
  state_BLR: jax.Array,
  context: cca.Context,
  slides: bool,
) -> dict[str, jax.Array]:
  config, attn, router = block.config, block.attn, block.router
  dtype, out = layers.compute_dtype(config), {}
  h_BLD = layers.rms_norm(x_BLD, block.attn_norm, config.norm_eps, dtype)
  out['attn.norm'] = h_BLD
  real_BLD = jnp.where(context.mask[..., None], h_BLD, 0)
  projected_BLP, kernel = attn.project(real_BLD), attn.joint_kernel()
  z_BLZ, *_ = cca_ops.split(projected_BLP, kernel[0])
  heads = (config.num_heads, config.num_kv_heads)
  q_BLX, k_BLX = jnp.split(z_BLZ, [config.head_dim * heads[0]], axis=-1)
  out['attn.q_proj'], out['attn.k_proj'] = q_BLX, k_BLX
  out['attn.conv_grouped'] = cca_ops.convolve(z_BLZ, *kernel, None)
  out['attn.q_mean'], out['attn.k_mean'] = cca_ops.qk_mean(q_BLX, k_BLX, *heads)
  cos, sin = context.rope[slides]
  # Without channels to rotate, then with them.
  tables = {'norm': (cos[..., :0], sin[..., :0]), 'rope': (cos, sin)}
  for name, rope in tables.items():
    out[f'attn.q_{name}'], out[f'attn.k_{name}'], out['attn.v'] = attn.prologue(
      projected_BLP, context, rope
    )
  window = jnp.asarray(slides) if config.sliding_layers else None
  o_BLD = attn(h_BLD, context, window)
  x_BLD = layers.merge(vars(block.attn_merge), o_BLD, x_BLD)
  out['attn.out'], out['attn.merge'] = o_BLD, x_BLD
  h_BLD = layers.rms_norm(x_BLD, block.moe_norm, config.norm_eps, dtype)
  routes = router(h_BLD, state_BLR)
  y_BLD = moe.weigh(
    block.experts(h_BLD, routes.choice), h_BLD, routes, config.skip
  )
  h32_BLD = h_BLD.astype(jnp.float32)
  return out | {
    'moe.norm': h_BLD,
    'router.down': layers.linear(h32_BLD, router.down, router.down_bias),
    'router.state': routes.state,
    'router.probs': routes.probs,
    'router.choice': routes.choice,
    'router.weight': routes.weight,
    'moe.out': y_BLD,
    'moe.merge': layers.merge(vars(block.moe_merge), y_BLD, x_BLD),
  }


def _decode(config, params, buffers, tokens_BL, mask_BL, prompt):
  """[B, L - prompt, V]: the rest of the tokens, one by one, from the cache."""
  weights = network.prepare(config, params, buffers)

  @jax.jit
  def step(tokens_BL, mask_BL, cache):
    x_BLD, cache = network.forward(config, weights, tokens_BL, cache, mask_BL)
    return network.logits(config, weights, x_BLD), cache

  cache = network.init_cache(config, weights, *tokens_BL.shape)
  _, cache = step(tokens_BL[:, :prompt], mask_BL[:, :prompt], cache)
  logits = []
  for t in range(prompt, tokens_BL.shape[1]):
    now = slice(t, t + 1)
    out_B1V, cache = step(tokens_BL[:, now], mask_BL[:, now], cache)
    logits.append(out_B1V)
  return jnp.concatenate(logits, axis=1)
