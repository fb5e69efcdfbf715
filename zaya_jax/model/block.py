# SPDX-License-Identifier: Apache-2.0
"""One layer: attention and experts, each merged into the residual stream."""

import jax
from flax import nnx

from ops.experts import sink as sink_lib
from zaya_jax import config as config_lib
from zaya_jax.model import cca, layers, moe
from zaya_jax.model import router as router_lib


class Block(nnx.Module):
  """One layer; the stack of all layers is a Block with a leading axis N."""

  def __init__(self, config: config_lib.ModelConfig, rngs: nnx.Rngs):
    self.config = config
    self.attn_norm = layers.constant(1.0, config.d_model)
    self.attn = cca.CCA(config, rngs)
    learned = config.residual_scaling
    self.attn_merge = layers.ResidualMerge(config.d_model, learned)
    self.moe_norm = layers.constant(1.0, config.d_model)
    self.router = router_lib.Router(config, rngs)
    self.experts = moe.Experts(config, rngs)
    self.moe_merge = layers.ResidualMerge(config.d_model, learned)

  def __call__(
    self,
    x_BLD: jax.Array,
    h_BLD: jax.Array,
    state_BLR: jax.Array,
    context: cca.Context,
    slides: jax.Array | None,
    next_norm_D: jax.Array,
    sink: sink_lib.Sink | None = None,
  ) -> tuple[jax.Array, jax.Array, router_lib.Routes, sink_lib.Stacks | None]:
    """Applies the layer.

    Each merge into the residual stream is one pass over memory with the norm
    behind it, that of the next layer too.

    Args:
      x_BLD: [B, L, D] float32 residual stream.
      h_BLD: [B, L, D] its `attn_norm`, in the compute type.
      state_BLR: [B, L, R] float32 router state of the layer before.
      context: masks, segments and rotations of the batch.
      slides: bool scalar, whether this layer slides; None: no layer does.
      next_norm_D: `attn_norm` of the next layer, or what norms the last.
      sink: where gradients of the experts go; None: to their matrices.

    Returns:
      The new residual stream, its norm by `next_norm_D`, the routes, and the
      stacks of the sink.
    """
    eps = self.config.norm_eps
    o_BLD = self.attn(h_BLD, context, slides)
    x_BLD, h_BLD = self.attn_merge.then_norm(
      o_BLD, x_BLD, self.moe_norm[...], eps
    )
    routes = self.router(h_BLD, state_BLR)
    y_BLD, taken, stacks = self.experts.weighed(
      h_BLD, routes, self.config.skip, sink
    )
    x_BLD, h_BLD = self.moe_merge.then_norm(
      y_BLD, x_BLD, next_norm_D, eps, taken
    )
    return x_BLD, h_BLD, routes, stacks
