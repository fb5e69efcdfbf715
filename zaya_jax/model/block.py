# SPDX-License-Identifier: Apache-2.0
"""One layer: attention and experts, each merged into the residual stream."""

import jax
from flax import nnx

import ops
from zaya_jax import config as config_lib
from zaya_jax.model import cca, layers, moe
from zaya_jax.model import router as router_lib


class Block(nnx.Module):
  """One layer; the stack of all layers is a Block with a leading axis N."""

  def __init__(self, config: config_lib.ModelConfig, rngs: nnx.Rngs):
    self.config = config
    self.attn_norm = layers.constant(1.0, config.d_model)
    self.attn = cca.CCA(config, rngs)
    self.attn_merge = layers.ResidualMerge(config.d_model)
    self.moe_norm = layers.constant(1.0, config.d_model)
    self.router = router_lib.Router(config, rngs)
    self.experts = moe.Experts(config, rngs)
    self.moe_merge = layers.ResidualMerge(config.d_model)

  def __call__(
    self,
    x_BLD: jax.Array,
    state_BLR: jax.Array,
    context: cca.Context,
    slides: jax.Array | None,
  ) -> tuple[jax.Array, router_lib.Routes]:
    """Applies the layer.

    Args:
      x_BLD: [B, L, D] float32 residual stream.
      state_BLR: [B, L, R] float32 router state of the layer before.
      context: masks, segments and rotations of the batch.
      slides: bool scalar, whether this layer slides; None: no layer does.

    Returns:
      The new residual stream and the routes.
    """
    dtype, eps = layers.compute_dtype(self.config), self.config.norm_eps
    h_BLD = layers.rms_norm(x_BLD, self.attn_norm, eps, dtype)
    merge = self.attn_merge
    x_BLD, h_BLD = ops.residual_rms_norm(
      self.attn(h_BLD, context, slides),
      x_BLD,
      merge.branch_scale[...],
      merge.branch_bias[...],
      merge.residual_scale[...],
      merge.residual_bias[...],
      self.moe_norm[...],
      eps=eps,
      dtype=dtype,
    )
    routes = self.router(h_BLD, state_BLR)
    y_BLD = moe.weigh(
      self.experts(h_BLD, routes.choice), h_BLD, routes, self.config.skip
    )
    return self.moe_merge(y_BLD, x_BLD), routes
