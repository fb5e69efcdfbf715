# SPDX-License-Identifier: Apache-2.0
"""The trainer with multi-head latent attention (MLA) in the place of CCA.

    python -m benchmarks.peers.mla --model.attention=gqa --FLAG ...

To compare with, as `benchmarks.ablations` does; it trains and is scored, and
generates nothing. Keys and values of all heads come from one narrow latent
vector of a token, and the rotated channels of a key are one vector for all
heads (DeepSeek-V2, arXiv 2405.04434, section 2.1, without the compression of
queries). Queries and keys are normed as those of the other kinds of attention.
What is kept of a token is as much as `--model.num_kv_heads` heads of CCA keep.

Axis letters: B sequences, L positions, D residual width, H heads, C channels of
a head, R of them rotated, M channels of the latent vector.
"""

import os
import sys

import jax
import jax.numpy as jnp
from flax import nnx

import ops
from ops.cca import reference as cca_ops
from zaya_jax import config as config_lib
from zaya_jax import main
from zaya_jax.model import block, cca, layers


class MLA(nnx.Module):
  """The attention of one layer; its matrices have the names of `cca.CCA`."""

  def __init__(self, config: config_lib.ModelConfig, rngs: nnx.Rngs):
    self.config = config
    d, c, h, r = widths(config)
    m, std = latent(config), config.init_std
    self.q = layers.normal(rngs, std, d, h * c)
    self.k = layers.normal(rngs, std, d, m + r)  # Down, and the rotated key.
    self.v_current = layers.normal(rngs, std, m, h * (2 * c - r))  # Up.
    self.out = layers.normal(rngs, std, h * c, d)
    self.temperature = layers.constant(config.temperature_init, h)

  def __call__(
    self, h_BLD: jax.Array, context: cca.Context, slides: jax.Array | None
  ) -> jax.Array:
    """[B, L, D]; nothing slides and rows are whole."""
    del slides
    if context.mask is not None:
      h_BLD = jnp.where(context.mask[..., None], h_BLD, 0)
    q_BLHC, k_BLHC, v_BLHC = self.heads(h_BLD, context.rope[0])
    o_BLHC = ops.attention(
      *(q_BLHC, k_BLHC, v_BLHC),
      q_segments_BL=context.attend_segments,
      k_segments_BS=context.attend_segments,
    )
    return layers.linear(o_BLHC.reshape(*o_BLHC.shape[:2], -1), self.out)

  def heads(
    self, h_BLD: jax.Array, rope: tuple[jax.Array, jax.Array]
  ) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries, keys and values, [B, L, H, C] each.

    Args:
      h_BLD: [B, L, D] normed residual stream.
      rope: cosines and sines, [B, L, R].
    """
    _, c, h, r = widths(self.config)
    rows = h_BLD.shape[:2]
    q_BLHC = layers.linear(h_BLD, self.q).reshape(*rows, h, c)
    down_BLX = layers.linear(h_BLD, self.k)
    turned_BLR, latent_BLM = down_BLX[..., :r], down_BLX[..., r:]
    # Its learned scale would be one of the rows of the matrix behind it.
    one = jnp.ones(latent_BLM.shape[-1])
    eps, dtype = self.config.norm_eps, h_BLD.dtype
    latent_BLM = layers.rms_norm(latent_BLM, one, eps, dtype)
    up_BLHX = layers.linear(latent_BLM, self.v_current).reshape(*rows, h, -1)
    shared_BLHR = jnp.broadcast_to(turned_BLR[:, :, None], (*rows, h, r))
    k_BLHC = jnp.concatenate([shared_BLHR, up_BLHX[..., : c - r]], axis=-1)
    wide = lambda x: x.astype(jnp.promote_types(x.dtype, jnp.float32))
    q_BLHC = cca_ops.normalize(wide(q_BLHC))
    k_BLHC = cca_ops.normalize(wide(k_BLHC))
    k_BLHC *= self.temperature[...][None, None, :, None]
    turn = lambda x: cca_ops.rotate(x, *rope).astype(dtype)
    return turn(q_BLHC), turn(k_BLHC), up_BLHX[..., c - r :]


def widths(config: config_lib.ModelConfig) -> tuple[int, int, int, int]:
  """D, C, H and R."""
  return config.d_model, config.head_dim, config.num_heads, config.d_rope


def latent(config: config_lib.ModelConfig) -> int:
  """M: with the rotated key, what the heads of CCA keep of a token."""
  return 2 * config.num_kv_heads * config.head_dim - config.d_rope


def run(argv: list[str]) -> int:
  """The trainer, with MLA in each layer, and without samples."""
  # Its programs would be found as those of the model that the flags describe.
  os.environ['JAX_ENABLE_COMPILATION_CACHE'] = 'false'
  block.cca.CCA = MLA
  return main.main([*argv, '--log.sample_every=0'])


if __name__ == '__main__':
  sys.exit(run(sys.argv))
