# SPDX-License-Identifier: Apache-2.0
"""ZAYA1: embedding, a scanned stack of layers, final norm, head.

Parameters and buffers are nested dicts of float32 arrays; everything under
`layers` has a leading axis N. `bind` puts them back into the module. Equations
and numbers: arXiv 2605.05365 and the Hugging Face implementation.

Axis letters: B sequences, L positions, D residual width, R router width, X
router classes, N layers, V vocabulary.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ops.experts import sink as sink_lib
from zaya_jax import config as config_lib
from zaya_jax.model import block, cca, embedding, layers, packed, stack, working
from zaya_jax.model import lora as lora_lib
from zaya_jax.model import router as router_lib
from zaya_jax.parallel import partition
from zaya_jax.parallel.context import divided


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Features:
  """What the stack of layers makes of a batch.

  Attributes:
    x: [B, L, D] after the final norm, in the compute type.
    load: of each layer, [N, ...], padding left out.
  """

  x: jax.Array
  load: router_lib.Load


class Zaya(nnx.Module):
  """The network."""

  def __init__(self, config: config_lib.ModelConfig, rngs: nnx.Rngs):
    self.config = config
    v, d = config.vocab_size, config.d_model
    self.embed = layers.normal(rngs, config.init_std, v, d)
    self.input_scale = layers.constant(1.0, d)
    self.input_bias = layers.constant(0.0, d)
    keys = jax.random.split(rngs.params(), config.num_layers)
    self.layers = jax.vmap(lambda key: block.Block(config, nnx.Rngs(key)))(keys)
    self.final_norm = layers.constant(1.0, d)
    if not config.tie_embeddings:
      self.head = layers.normal(rngs, config.init_std, v, d)
    if config.head_bias:
      self.head_bias = layers.constant(0.0, v)
    self.adapter: Any = None  # Of the layers: `bind` sets it.

  def __call__(
    self,
    tokens_BL: jax.Array,
    *,
    attention_mask: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    positions: jax.Array | None = None,
  ) -> jax.Array:
    """Logits [B, L, V] float32; see `features`."""
    out = self.features(
      tokens_BL,
      attention_mask=attention_mask,
      segment_ids=segment_ids,
      positions=positions,
    )
    return self.logits(out.x)

  def features(
    self,
    tokens_BL: jax.Array,
    *,
    attention_mask: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    positions: jax.Array | None = None,
    context_mode: str = 'gather',
    sinks: working.Sinks | None = None,
    sample_every: int = 0,
    likely_of: int = 0,
  ) -> Features:
    """Everything below the head.

    Args:
      tokens_BL: [B, L] int32.
      attention_mask: [B, L], 0 for padding; None: no padding.
      segment_ids: [B, L] int, the document of each token, 0 for padding: no
        token sees another document. Where both are given, both hold.
      positions: [B, L] int for the rotary embedding; None: 0, 1, ... in each
        row, padding not counted.
      context_mode: of `cca.Context`, where tokens of a row are divided.
      sinks: of the gradients of the experts; None: they have no other place
        than those of other parameters.
      sample_every: of `router.measure`.
      likely_of: likewise.
    """
    mask = None if attention_mask is None else attention_mask.astype(bool)
    if mask is not None and segment_ids is not None:
      segment_ids = jnp.where(mask, segment_ids, 0)
    context = _context(
      self.config, tokens_BL, mask, segment_ids, positions, context_mode
    )
    x_BLD = embedding.look_up(self.embed[...], tokens_BL)
    scale_D, bias_D = self.input_scale[...], self.input_bias[...]
    if not self.config.residual_scaling:
      scale_D, bias_D = jax.lax.stop_gradient((scale_D, bias_D))
    x_BLD = layers.affine(x_BLD, scale_D, bias_D)
    counts = mask if segment_ids is None else segment_ids > 0
    how = counts, sample_every, likely_of
    h_BLD, load = self._run_layers(x_BLD, context, sinks, how)
    return Features(x=h_BLD, load=load)

  def logits(self, x_BLD: jax.Array) -> jax.Array:
    """[B, L, V] float32 of the final hidden states."""
    logits = jnp.einsum(
      'BLD,VD->BLV',
      x_BLD,
      self.head_matrix(x_BLD.dtype),
      preferred_element_type=jnp.float32,
    )
    bias = self.head_vector()
    return logits if bias is None else logits + bias[None, None]

  def head_matrix(self, dtype: jnp.dtype) -> jax.Array:
    """[V, D] rows of the output head, the embedding if they are tied."""
    matrix = self.embed if self.config.tie_embeddings else self.head
    return matrix.astype(dtype)

  def head_vector(self) -> jax.Array | None:
    """[V] bias of the output head, or None."""
    return self.head_bias[...] if self.config.head_bias else None

  def _run_layers(self, x_BLD, context, sinks, measured):
    config = self.config
    whole = _abstract(config).layers
    slides_N = None
    if config.sliding_layers:
      slides_N = np.isin(range(config.num_layers), config.sliding_layers)

    # Each layer ends with the norm of the next one, the last with the final.
    norms_ND = self.layers.attn_norm[...]
    next_ND = jnp.concatenate([norms_ND[1:], self.final_norm[...][None]])

    def layer(carry, inputs):
      *stream, stacks = carry
      params, slides, next_D, index, adapter = inputs
      params = partition.gather(params, whole, 'layers/')
      params = lora_lib.merge(params, adapter) if adapter else params
      sink = sinks and sink_lib.Sink(stacks, jnp.stack([index, sinks.add]))
      *stream, routes, stacks = params(*stream, context, slides, next_D, sink)
      bias_X = params.router.balance_bias[...]
      load = router_lib.measure(routes, bias_X, *measured)
      return (*stream, routes.state, stacks), load

    if config.remat in _REMAT:
      layer = jax.checkpoint(layer, **self._recomputed())

    def gathered(carry, inputs):
      # Not a part of `layer`: what is gathered here stays for the backward
      # pass, whatever that recomputes.
      params, *others = inputs
      params = partition.gather(
        params, whole, 'layers/', partition.BUT_FSDP, working.narrow(config)
      )
      return layer(carry, (params, *others))

    h_BLD = layers.rms_norm(
      x_BLD, norms_ND[0], config.norm_eps, layers.compute_dtype(config)
    )
    state_BLR = jnp.zeros((*x_BLD.shape[:2], config.d_router))
    index_N = jnp.arange(config.num_layers, dtype=jnp.int32)
    (_, h_BLD, _, stacks), load = stack.run(
      gathered,
      (x_BLD, h_BLD, state_BLR, sinks and sinks.stacks),
      (self.layers, slides_N, next_ND, index_N, self.adapter),
      loop=config.scan_layers != 'false',
    )
    if sinks:
      h_BLD = sink_lib.begin(h_BLD, stacks, sinks.first)
    return h_BLD, load

  def _recomputed(self):
    """How `jax.checkpoint` computes a layer anew."""
    policy, adapted = _REMAT[self.config.remat], self.adapter is not None
    if adapted and policy:
      policy = _is_dear_of_adapted
    # Of layers that are written out XLA would find both sums of a layer's
    # weights and adapters, and keep one for the backward pass.
    apart = adapted and self.config.scan_layers == 'false'
    return {'prevent_cse': apart, 'policy': policy}


# What costs a pass over memory at most, fused into what needs it: not worth
# saving. Nor are the weights of all devices (FSDP), and those of another type.
_CHEAP = frozenset(
  """abs add all_gather and broadcast_in_dim concatenate
  convert_element_type cos div dynamic_slice eq erf exp exp2 expand_dims
  ge gt integer_pow le log logistic lt max min mul ne neg not or pad pow
  reduce_precision reshape rsqrt select_n shift_right_logical sign sin slice
  split sqrt square squeeze stack stop_gradient sub tanh transpose""".split()
)


def _is_dear(primitive, *_, **__) -> bool:
  return primitive.name not in _CHEAP


def _is_dear_of_adapted(*operation, **how) -> bool:
  return _is_dear(*operation) and not _is_low_rank(*operation, **how)


def _is_low_rank(primitive, *arrays, **how) -> bool:
  """Whether it is a product like A @ B, much larger than its factors."""
  if primitive.name != 'dot_general':
    return False
  (a, b), ((inner, _), (batch, _)) = arrays, how['dimension_numbers']
  count = lambda dims: math.prod(a.shape[dim] for dim in dims)
  result = a.size * b.size // (count(inner) ** 2 * count(batch))
  return result > 4 * (a.size + b.size)


# --model.remat -> which results the backward pass finds saved.
_REMAT = {'block': None, 'cheap': _is_dear}


@functools.lru_cache(maxsize=32)
def graphdef(config: config_lib.ModelConfig) -> nnx.GraphDef:
  """The structure of the module, without arrays."""
  return nnx.graphdef(_abstract(config))


@functools.lru_cache(maxsize=32)
def _abstract(config):
  return jax.eval_shape(lambda: Zaya(config, nnx.Rngs(0)))


def init(
  config: config_lib.ModelConfig, key: jax.Array
) -> tuple[dict[str, Any], dict[str, Any]]:
  """New parameters and buffers (the balancing bias): nested dicts."""
  model = Zaya(config, nnx.Rngs(key))
  _, *states = nnx.split(model, nnx.Param, layers.BalanceBias)
  params, buffers = map(nnx.to_pure_dict, states)
  return params, buffers


def bind(
  config: config_lib.ModelConfig,
  params: dict[str, Any],
  buffers: dict[str, Any],
) -> Zaya:
  """The module with these arrays in it; use it inside of jit.

  Inside of `mesh.on_each` they may be parts (`partition.part_specs`): here
  those are gathered that no layer gathers. Of `lora.join` they have an adapter.
  """
  _, *states = nnx.split(_abstract(config), nnx.Param, layers.BalanceBias)
  params, adapter = packed.split(config, params)
  params = partition.gather_outer(params, nnx.to_pure_dict(states[0]))
  for state, arrays in zip(states, (params, buffers), strict=True):
    nnx.replace_by_pure_dict(state, arrays)
  model = nnx.merge(graphdef(config), *states)
  if adapter:
    model.adapter = nnx.data(adapter['layers'])
  return model


def _context(config, tokens_BL, mask, segment_ids, positions, context_mode):
  """The attention context of a batch."""
  if positions is None:
    real = jnp.ones(tokens_BL.shape, bool) if mask is None else mask
    positions = jnp.maximum(jnp.cumsum(real, axis=1) - 1, 0)
  tables = [
    layers.rope_table(positions, config.d_rope, theta)
    for theta in (config.rope_theta, config.sliding_rope_theta)
  ]
  segments = mask if segment_ids is None else segment_ids
  return cca.Context(
    mask=mask,
    segments=segment_ids,
    attend_segments=segments,
    divided=divided.make(
      jnp.zeros_like(tokens_BL) if segment_ids is None else segment_ids,
      segments,
      max(config.conv_context, 1),  # Values come from one token before.
      context_mode,
    ),
    rope=(tables[0], tables[1] if config.sliding_layers else tables[0]),
  )
