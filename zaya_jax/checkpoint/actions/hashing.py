# SPDX-License-Identifier: Apache-2.0
"""Content hashes of arrays that do not depend on how they are sharded.

Each leaf is hashed alone (path, type, shape, bytes of the whole array), then
the list of leaf hashes by path. So a checkpoint of any size is hashed one leaf
at a time, and two runs are equal to the last bit if their hashes are.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

_PARAMS = 'params/'


def leaf_hash(path: str, array: Any) -> str:
  """The hash of one array under its path, in hex."""
  full = np.ascontiguousarray(np.asarray(array))
  digest = hashlib.sha256(f'{path} {full.dtype} {array.shape}\n'.encode())
  # As bytes: bfloat16 has no buffer that hashlib could read.
  digest.update(full.reshape(-1).view(np.uint8))
  return digest.hexdigest()


def state_hash(leaf_hashes: Mapping[str, str]) -> str:
  """The hash of a training state from those of its leaves by path, in hex."""
  lines = [f'{path} {leaf_hashes[path]}\n' for path in sorted(leaf_hashes)]
  return hashlib.sha256(''.join(lines).encode()).hexdigest()


def params_hash(leaf_hashes: Mapping[str, str]) -> str:
  """As `state_hash`, of the leaves under `params` alone."""
  own = {k: v for k, v in leaf_hashes.items() if k.startswith(_PARAMS)}
  return state_hash(own)
