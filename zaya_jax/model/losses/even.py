# SPDX-License-Identifier: Apache-2.0
"""The auxiliary loss by which most mixtures of experts spread their tokens.

ZAYA1 needs none; it is here to compare with. Axis letters: N layers, E experts.
"""

import jax
import jax.numpy as jnp

from zaya_jax.model import router
from zaya_jax.parallel import mesh


def even(load: router.Load, num_experts: int) -> jax.Array:
  """How unevenly each layer spreads its tokens, summed over them.

  `E * sum_e f_e p_e` of a token: its probability of each expert, and the share
  of the tokens that chose it, over all devices and without a gradient; 1 where
  either is even. Equation 4 of Fedus et al., 2021 (arXiv 2101.03961).

  Args:
    load: of this device, [N, ...], with `likely`.
    num_experts: E; tokens of the skip class are left out.

  Returns:
    [N] float32, of the tokens of this device.
  """
  tokens_NE = mesh.total(load.tokens)[:, :num_experts]
  total_N1 = jnp.maximum(jnp.sum(tokens_NE, axis=1, keepdims=True), 1.0)
  share_NE = jax.lax.stop_gradient(tokens_NE / total_N1)
  return num_experts * jnp.sum(share_NE * load.likely, axis=1)
