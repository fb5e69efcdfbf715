# SPDX-License-Identifier: Apache-2.0
"""experts.jsonl: where tokens went, of each layer, and the balancing bias.

A row is {"step", "share": [N][X], "bias": [N][X]}: the share of the tokens
since the row before that chose each router class, and the bias of the newest
step. Rows are so far apart that a run has about a thousand.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from zaya_jax.metrics import journal

ARRAYS = ('moe/load', 'moe/bias')  # As a step measures them: [N, X] each.
_ROWS = 1000


class ExpertLog:
  """Adds up the load of steps and appends rows to a file."""

  def __init__(
    self, path: pathlib.Path, *, last_step: int, num_steps: int, every: int
  ):
    """Opens the file and drops what lies after `last_step`.

    Args:
      path: of the file.
      last_step: steps done before.
      num_steps: of the run.
      every: steps between two rows of metrics, of which some become rows here.
    """
    self._every = every * -(-num_steps // (every * _ROWS))
    self._num_steps = num_steps
    self._load_NX: np.ndarray | None = None
    self._bias_NX: np.ndarray | None = None
    self._journal = journal.Journal(path, last_step=last_step)
    self._journal.history.clear()  # Of a large model, many megabytes.
    self.close = self._journal.close

  def add(self, step: int, measured: Mapping[str, Any]) -> None:
    """Takes what a step has measured; writes a row where it is time."""
    if ARRAYS[0] not in measured:
      return
    load_NX, self._bias_NX = (np.asarray(measured[name]) for name in ARRAYS)
    old_NX = 0 if self._load_NX is None else self._load_NX
    self._load_NX = old_NX + load_NX.astype(np.float64)
    if step == 1 or step % self._every == 0 or step == self._num_steps:
      total_N1 = self._load_NX.sum(axis=1, keepdims=True)
      share_NX = self._load_NX / np.maximum(total_N1, 1.0)
      self._load_NX = None
      # NaN in a bias is no JSON.
      bias_NX = np.nan_to_num(self._bias_NX.astype(np.float64))
      self._journal.write(
        {
          'step': step,
          'share': np.round(share_NX, 4).tolist(),
          'bias': np.round(bias_NX, 5).tolist(),
        }
      )
