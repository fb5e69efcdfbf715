# SPDX-License-Identifier: Apache-2.0
"""The network once more, for decoding: the same function, laid out for speed.

Reading weights and cache from memory is all the time of a token. So `prepare`
joins what is read together (the projections of attention, both convolutions),
casts what every step would cast, and stores matrices as [out, in], which a GPU
reads fastest for one token; layers are unrolled, and their caches are apart, so
that each is updated in place. The maths of training (`ops.cca`, `layers`) is
used where it does not depend on the layout, and the router is that of training.

Axis letters: B rows, L new tokens, D residual width, H query heads, K key/value
heads, C channels of a head, Z channels that the convolutions mix, R router
width, S rows of the cache, V vocabulary.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

import ops
from ops.cca import reference as cca_ops
from ops.experts import packed
from zaya_jax import config as config_lib
from zaya_jax.inference.decoding import cache as cache_lib
from zaya_jax.inference.decoding import look_back as look_back_lib
from zaya_jax.inference.decoding.single import layer as layer_of_one
from zaya_jax.model import cca, layers, moe, zaya
from zaya_jax.model import packed as few_bits
from zaya_jax.parallel.context import tree


def prepare(
  config: config_lib.ModelConfig,
  params: dict[str, Any],
  buffers: dict[str, Any],
) -> dict[str, Any]:
  """Weights laid out for decoding; `layers` is a tuple with a dict each."""
  dtype = layers.compute_dtype(config)
  top = {k: v for k, v in params.items() if k != 'layers'}
  for name in ('embed', 'head'):
    if name in top:
      top[name] = few_bits.narrow(top[name], dtype)
  routers = zaya.bind(config, params, buffers).layers.router
  stack = {**params['layers'], 'router': routers}
  norms = stack['attn_norm']
  stack['merges'] = {
    'attn': _merges(stack['attn_merge'], stack['moe_norm']),
    # With the norm of the next layer, or the last one.
    'moe': _merges(
      stack['moe_merge'],
      jnp.concatenate([norms[1:], params['final_norm'][None]]),
    ),
  }
  return {
    **top,
    'layers': tuple(
      _prepare_layer(config, jax.tree.map(lambda a, n=n: a[n], stack), dtype)
      for n in range(config.num_layers)
    ),
  }


def _merges(vectors, norms_ND):
  """[layers, 5, D], in one array: a kernel takes them so."""
  names = 'branch_scale', 'branch_bias', 'residual_scale', 'residual_bias'
  return jnp.stack([*(vectors[name] for name in names), norms_ND], axis=1)


def _prepare_layer(config, layer, dtype):
  attn = layer['attn']
  names = ('q', 'k', 'v_current', 'v_delayed')
  rows = functools.partial(few_bits.rows, dtype=dtype)
  fused = {
    'qkv': packed.join([rows(attn[n]) for n in names], dtype),
    'temperature': attn['temperature'],
    'out': rows(attn['out']),
  }
  if config.attention == 'cca':
    fused |= _prepare_kernel(attn, dtype)
  if config.attention_bias:
    fused['qkv_bias'] = jnp.concatenate([attn[f'{n}_bias'] for n in names])
    fused['out_bias'] = attn['out_bias']
  return {
    **layer,
    'attn': fused,
    # Stored as [out, in] too; of a vector it is the vector.
    'router': jax.tree.map(jnp.transpose, layer['router']),
    'experts': {k: rows(v) for k, v in layer['experts'].items()},
  }


def _prepare_kernel(attn, dtype):
  kernel_GCX, kernel_bias_Z = cca_ops.joint_kernel(
    *(
      attn[f'conv_{name}']
      for name in ('depthwise', 'depthwise_bias', 'grouped', 'grouped_bias')
    )
  )
  groups, c, _ = kernel_GCX.shape
  # Lags from the oldest to the newest, as their samples come: [G, out, in].
  kernel = kernel_GCX.reshape(groups, c, -1, c)[:, :, ::-1]
  kernel = kernel.transpose(0, 3, 2, 1).reshape(groups, c, -1)
  return {'kernel': kernel.astype(dtype), 'kernel_bias': kernel_bias_Z}


def init_cache(
  config: config_lib.ModelConfig,
  weights: dict[str, Any],
  batch: int,
  size: int,
) -> cache_lib.Cache:
  """An empty cache of `size` tokens for `batch` rows, in the compute type."""
  dtype = layers.compute_dtype(config)
  n, kv_heads, c = config.num_layers, config.num_kv_heads, config.head_dim
  kv = (batch, kv_heads, size, c)
  delayed = jnp.zeros((n, batch, kv_heads * c // 2), dtype)
  if config.attention_bias:
    # Before the first token stands the projection of a zero vector.
    biases = [w['attn']['qkv_bias'] for w in weights['layers']]
    first_NX = jnp.stack(biases)[:, -delayed.shape[-1] :].astype(dtype)
    delayed += first_NX[:, None]
  return cache_lib.Cache(
    k=tuple(jnp.zeros(kv, dtype) for _ in range(n)),
    v=tuple(jnp.zeros(kv, dtype) for _ in range(n)),
    conv=jnp.zeros((n, batch, config.conv_context, config.d_qk), dtype),
    delayed=delayed,
    length=jnp.int32(0),
    valid=jnp.zeros((batch, size), bool),
    position=jnp.zeros((batch,), jnp.int32),
  )


def forward(
  config: config_lib.ModelConfig,
  weights: dict[str, Any],
  tokens_BL: jax.Array,
  cache: cache_lib.Cache,
  mask_BL: jax.Array | None = None,
  axis: str | None = None,
) -> tuple[jax.Array, cache_lib.Cache]:
  """Appends tokens to the cache.

  Args:
    config: of the model.
    weights: of `prepare`.
    tokens_BL: [B, L] int32.
    cache: the state before these tokens, with room for them.
    mask_BL: [B, L] bool, False for padding, which leaves no trace; None: no
      padding. It only comes before the first token of a row, or, where each row
      has a length of its own, behind the last token of these.
    axis: the mesh axis over which the rows of the cache are divided, inside of
      `jax.shard_map`; None: they are not.

  Returns:
    [B, L, D] after the final norm, in the compute type, and the new state.
  """
  dtype = layers.compute_dtype(config)
  real_BL = jnp.ones(tokens_BL.shape, bool) if mask_BL is None else mask_BL
  positions_BL = cache.position[:, None] + jnp.maximum(
    jnp.cumsum(real_BL, axis=1) - 1, 0
  )
  valid_BS = cache_lib.write(axis, cache.valid, real_BL, cache.length, 1)
  x_BLD = packed.take(weights['embed'], tokens_BL, dtype)
  x_BLD = layers.affine(x_BLD, weights['input_scale'], weights['input_bias'])
  size = cache.valid.shape[1]
  alone = tokens_BL.size == 1 and not axis
  if alone and not layer_of_one.unsupported(config, weights, size):
    real_1 = None if mask_BL is None else mask_BL[0]
    h_BLD, states = layer_of_one.every(config, weights, x_BLD, cache, real_1)
  else:
    rows = {'offset': cache.length, 'valid_BS': valid_BS}
    h_BLD, states = _layers(
      config, weights, x_BLD, cache, positions_BL, mask_BL, axis, rows
    )
  k, v, conv, delayed = zip(*states, strict=True)
  count_B = jnp.sum(real_BL, axis=1, dtype=jnp.int32)
  return h_BLD, cache_lib.Cache(
    k=k,
    v=v,
    conv=jnp.stack(conv),
    delayed=jnp.stack(delayed),
    length=cache.length + (count_B if cache.length.ndim else real_BL.shape[1]),
    valid=valid_BS,
    position=cache.position + count_B,
  )


def _layers(config, weights, x_BLD, cache, positions_BL, mask_BL, axis, rows):
  """Behind the final norm, and of each layer what the cache keeps."""
  state_BLR = jnp.zeros((*x_BLD.shape[:2], config.d_router), jnp.float32)
  states = []
  stack = weights['layers']
  dtype = layers.compute_dtype(config)
  h_BLD = layers.rms_norm(x_BLD, stack[0]['attn_norm'], config.norm_eps, dtype)
  for n, w in enumerate(stack):
    theta, window = config.reach(n)
    rope = layers.rope_table(positions_BL, config.d_rope, theta)
    old = (cache.k[n], cache.v[n], cache.conv[n], cache.delayed[n])
    o_BLD, new = _attend(
      *(config, w['attn'], h_BLD, mask_BL, rope, old, axis),
      {**rows, 'window': window},
    )
    states.append(new)
    x_BLD, h_BLD = _merge(config, w['merges']['attn'], o_BLD, x_BLD)
    y_BLD, state_BLR = _experts(config, w, h_BLD, state_BLR, mask_BL)
    x_BLD, h_BLD = _merge(config, w['merges']['moe'], y_BLD, x_BLD)
  return h_BLD, states


def logits(
  config: config_lib.ModelConfig, weights: dict[str, Any], x_BLD: jax.Array
) -> jax.Array:
  """[B, L, V] float32 of the final hidden states."""
  head = weights['embed'] if config.tie_embeddings else weights['head']
  out = _linear(x_BLD, head)
  return out + weights['head_bias'][None, None] if config.head_bias else out


def _merge(config, vectors_5D, branch_BLD, x_BLD):
  """The residual stream with a branch, and its norm: one kernel on a GPU."""
  return ops.residual_rms_norm(
    branch_BLD,
    x_BLD,
    *vectors_5D,
    eps=config.norm_eps,
    dtype=layers.compute_dtype(config),
  )


def _attend(config, w, h_BLD, mask_BL, rope, state, axis, rows):
  k_BKSC, v_BKSC, conv_BTZ, delayed_BX = state
  batch, length, _ = h_BLD.shape
  if mask_BL is not None:
    h_BLD = jnp.where(mask_BL[..., None], h_BLD, 0)
  out_BLX = _linear(h_BLD, w['qkv'], w.get('qkv_bias')).astype(h_BLD.dtype)
  if config.attention == 'gqa':
    q_BLHC, k_BLKC, v_BLKC = cca.plain(config, out_BLX, w['temperature'], rope)
    state = conv_BTZ, delayed_BX
  else:
    end_B = None  # Of the new tokens of each row; all of them.
    if mask_BL is not None and rows['offset'].ndim:
      end_B = jnp.sum(mask_BL, axis=1)
    q_BLHC, k_BLKC, v_BLKC, *state = look_back_lib.look_back(
      config, w, out_BLX, mask_BL, rope, conv_BTZ, delayed_BX, end_B
    )
  write = lambda old, new: cache_lib.write(
    axis, old, new.swapaxes(1, 2), rows['offset'], 2
  )
  k_BKSC = write(k_BKSC, k_BLKC)
  v_BKSC = write(v_BKSC, v_BLKC)
  attention = ops.cached_attention
  if axis:
    attention = functools.partial(tree.attention, axis=axis)
  o_BLHC = attention(q_BLHC, k_BKSC, v_BKSC, **rows)
  o_BLX = o_BLHC.astype(h_BLD.dtype).reshape(batch, length, -1)
  state = (k_BKSC, v_BKSC, *state)
  return _linear(o_BLX, w['out'], w.get('out_bias')), state


def _experts(config, w, h_BLD, state_BLR, mask_BL):
  routes = jax.tree.map(jnp.transpose, w['router'])(h_BLD, state_BLR)
  choice_BL = routes.choice
  if mask_BL is not None:  # Padding needs no expert.
    choice_BL = jnp.where(mask_BL, choice_BL, config.num_experts)
  y_TD = ops.expert_mlp_rows(
    h_BLD.reshape(-1, h_BLD.shape[-1]),
    choice_BL.reshape(-1),
    w['experts']['gate_up'],
    w['experts']['down'],
  )
  y_BLD = moe.weigh(y_TD.reshape(h_BLD.shape), h_BLD, routes, config.skip)
  return y_BLD, routes.state


def _linear(x_BLD, w_FD, bias_F=None):
  """X @ w^T + bias in float32."""
  out = packed.dot(x_BLD, w_FD)
  return out if bias_F is None else out + bias_F[None, None]
