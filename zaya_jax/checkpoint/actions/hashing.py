# SPDX-License-Identifier: Apache-2.0
"""Content hashes of arrays that do not depend on how they are sharded.

Each leaf is hashed alone (path, type, shape, bytes of the whole array), then
the list of leaf hashes by path. So a checkpoint of any size is hashed one leaf
at a time, and two runs are equal to the last bit if their hashes are.
"""

import hashlib
from typing import Any

import numpy as np

from zaya_jax.checkpoint import arrays

_PARAMS = 'params/'


def params_hash(state: Any) -> str:
  """The hash of the leaves under `params` of a training state, in hex."""
  return combine_params(_leaf_hashes(state))


def state_hash(state: Any) -> str:
  """The hash of all leaves of a training state, in hex."""
  return combine(_leaf_hashes(state))


def leaf_hash(path: str, array: Any) -> str:
  """The hash of one array under its path, in hex."""
  full = np.ascontiguousarray(np.asarray(array))
  digest = hashlib.sha256(f'{path} {full.dtype} {array.shape}\n'.encode())
  # As bytes: bfloat16 has no buffer that hashlib could read.
  digest.update(full.reshape(-1).view(np.uint8))
  return digest.hexdigest()


def combine(leaf_hashes: dict[str, str]) -> str:
  """The hash of a tree from the hashes of its leaves by path, in hex."""
  lines = [f'{path} {leaf_hashes[path]}\n' for path in sorted(leaf_hashes)]
  return hashlib.sha256(''.join(lines).encode()).hexdigest()


def combine_params(leaf_hashes: dict[str, str]) -> str:
  """As `combine`, of the leaves under `params` alone."""
  return combine(
    {k: v for k, v in leaf_hashes.items() if k.startswith(_PARAMS)}
  )


def _leaf_hashes(state: Any) -> dict[str, str]:
  named = arrays.named(state)
  return {path: leaf_hash(path, leaf) for path, leaf in named.items()}
