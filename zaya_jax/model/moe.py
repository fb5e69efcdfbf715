# SPDX-License-Identifier: Apache-2.0
"""The mixture of experts of one layer: route, compute, weigh.

Axis letters as in `router`; F inner width of an expert, T tokens.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import ops
from ops.experts import sink as sink_lib
from zaya_jax import config as config_lib
from zaya_jax.model import layers
from zaya_jax.model import router as router_lib
from zaya_jax.parallel import expert_exchange, mesh


class Experts(nnx.Module):
  """The SwiGLU experts of one layer."""

  def __init__(self, config: config_lib.ModelConfig, rngs: nnx.Rngs):
    e, d, f = config.num_experts, config.d_model, config.d_expert
    self.gate_up = layers.normal(rngs, config.init_std, e, d, 2 * f)
    self.down = layers.normal(rngs, config.init_std, e, f, d)

  def __call__(
    self,
    h_BLD: jax.Array,
    choice_BL: jax.Array,
    sink: sink_lib.Sink | None = None,
  ) -> Any:
    """[B, L, D] each token through its expert; zeros for the skip class.

    With a sink also its stacks, see `ops.expert_mlp`.
    """
    apply: Any = (
      ops.expert_mlp if mesh.size('expert') == 1 else expert_exchange.expert_mlp
    )
    out = apply(*self._inputs(h_BLD, choice_BL), sink)
    if sink is None:
      return out.reshape(h_BLD.shape)
    y_TD, stacks = out
    return y_TD.reshape(h_BLD.shape), stacks

  def weighed(
    self,
    h_BLD: jax.Array,
    routes: router_lib.Routes,
    skip: str,
    sink: sink_lib.Sink | None = None,
  ) -> tuple[jax.Array, tuple[jax.Array, ...], sink_lib.Stacks | None]:
    """`weigh` of the results, for `ResidualMerge.then_norm`.

    Returns:
      That, [B, L, D], and nothing; or the results in an order of their own, and
      what takes them from there (`ops.residual_rms_norm`). Then the stacks of
      the sink.
    """
    if mesh.size('expert') == 1 and skip != 'identity':
      inputs = self._inputs(h_BLD, routes.choice)
      made = ops.expert_mlp_in_place(*inputs, sink=sink)
      if made.row_T is not None:
        row_BL = made.row_T.reshape(routes.choice.shape)
        taken = routes.weight, row_BL, made.spare_Q
        return made.rows, taken, made.stacks
      y_BLD, stacks = made.rows.reshape(h_BLD.shape), made.stacks
    else:
      y_BLD, stacks = self(h_BLD, routes.choice, sink), None
      if sink:
        y_BLD, stacks = y_BLD
    return weigh(y_BLD, h_BLD, routes, skip), (), stacks

  def _inputs(self, h_BLD, choice_BL):
    return (
      *(h_BLD.reshape(-1, h_BLD.shape[-1]), choice_BL.reshape(-1)),
      *(w[...].astype(h_BLD.dtype) for w in (self.gate_up, self.down)),
    )


def weigh(
  y_BLD: jax.Array,
  h_BLD: jax.Array,
  routes: router_lib.Routes,
  skip: str,
) -> jax.Array:
  """P * y, [B, L, D] like y; of skipped tokens p * h or 0, by `skip`."""
  if skip == 'identity':
    skipped = routes.choice == routes.probs.shape[-1] - 1
    y_BLD = jnp.where(skipped[..., None], h_BLD, y_BLD)
  weighed = y_BLD.astype(jnp.float32) * routes.weight[..., None]
  return weighed.astype(h_BLD.dtype)
