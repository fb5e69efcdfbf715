# SPDX-License-Identifier: Apache-2.0
"""Says when the routers of a run do not spread tokens, and what helps."""

from collections.abc import Mapping
from typing import Any

from zaya_jax import config as config_lib

# The report's router has an entropy of 0.99 after 400 steps (arXiv 2605.05365,
# figure 4); ours has 0.95 after 100.
FROM_STEP = 200
LEAST_ENTROPY = 0.95
_ROWS = 3  # In a row, before it is told: text may be of one kind for a while.


class Watch:
  """Looks at rows of metrics; tells once when balance is lost, and regained."""

  def __init__(self, config: config_lib.Config):
    self._optim, self._dense = config.optim, config.model.num_experts == 1
    self._adapts = bool(config.lora.rank or config.dpo.beta)
    self._bad = self._good = 0
    self._told = False

  def look(self, row: Mapping[str, Any]) -> str | None:
    """A sentence if the row changes what is known of the routers, else None.

    Args:
      row: of metrics.jsonl.
    """
    entropy, least = row.get('moe/entropy'), row.get('moe/load_min')
    if self._dense or entropy is None or row['step'] <= FROM_STEP:
      return None
    good = entropy >= LEAST_ENTROPY and least > 0
    self._good, self._bad = (self._good + 1, 0) if good else (0, self._bad + 1)
    if not self._told and self._bad == _ROWS:
      self._told = True
      return (
        f'step {row["step"]}: the routers do not spread tokens: entropy '
        f'{entropy:.3f} (at least {LEAST_ENTROPY} is expected after '
        f'{FROM_STEP} steps), the least loaded expert has {least:.2f} of an '
        f'even share; {self._advice()}'
      )
    if self._told and self._good == _ROWS:
      self._told = False
      return f'step {row["step"]}: the routers spread tokens again'
    return None

  def _advice(self) -> str:
    """What helps, by what balances now."""
    lower = f'lower --optim.lr={self._optim.lr:g}'
    if self._adapts:
      return (
        'the balancing bias stays that of the model of --restore: '
        f'{lower}, unless the text is meant to use few experts'
      )
    if self._optim.balance == 'loss':
      return (
        f'--optim.balance_loss={self._optim.balance_loss:g} is too weak: raise '
        'it, or take --optim.balance=quantile'
      )
    if self._optim.balance_lr == 0:
      return (
        'the balancing bias is frozen: drop --optim.balance_lr=0, unless the '
        'text is meant to use few experts'
      )
    if self._optim.balance != 'quantile':
      return (
        f'--optim.balance={self._optim.balance} steps by '
        f'--optim.balance_lr={self._optim.balance_lr:g} whatever the router '
        'does: take --optim.balance=quantile'
      )
    return (
      f'{lower} or lengthen --optim.warmup_steps={self._optim.warmup_steps}: '
      'the router moves faster than its balance follows'
    )
