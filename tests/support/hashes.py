# SPDX-License-Identifier: Apache-2.0
"""Content hashes of states in memory, as listings tell them of checkpoints."""

from typing import Any

from zaya_jax.checkpoint import arrays
from zaya_jax.checkpoint.actions import hashing


def state_hash(state: Any) -> str:
  """Of all leaves."""
  return hashing.state_hash(_leaves(state))


def params_hash(state: Any) -> str:
  """Of the leaves under `params`."""
  return hashing.params_hash(_leaves(state))


def _leaves(state: Any) -> dict[str, str]:
  named = arrays.named(state).items()
  return {path: hashing.leaf_hash(path, leaf) for path, leaf in named}
