# SPDX-License-Identifier: Apache-2.0
"""The tokens of a step by which the balancing bias is found; without jax."""

import math

from zaya_jax import config as config_lib

_LEAST = 4096  # Tokens, where a step has them.


def every(config: config_lib.OptimConfig, data: config_lib.DataConfig) -> int:
  """One of how many tokens the rule looks at; 0: at none.

  A power of two that divides a row: so the sample has the same tokens, however
  they are divided among devices and microbatches.
  """
  if config.balance != 'quantile' or not config.balance_lr:
    return 0
  spare = max(1, data.batch_size * data.seq_len // _LEAST)
  most = 2 ** (spare.bit_length() - 1)
  return math.gcd(most, max(1, data.seq_len // 16))
