# SPDX-License-Identifier: Apache-2.0
"""Parameters of all layers made wide, and summed with an adapter, in NumPy."""

from typing import Any

import jax
import numpy as np

from zaya_jax.hub.quantized import rounding
from zaya_jax.model import lora
from zaya_jax.model import packed as few_bits


def widened(params: Any, dtype: Any) -> Any:
  """NumPy parameters of which no matrix is packed.

  Args:
    params: nested dict of a model.
    dtype: of the matrices that were packed.
  """

  def one(path, leaf):
    if not few_bits.is_packed(leaf):
      return np.asarray(leaf)
    pair = np.asarray(leaf.values), np.asarray(leaf.scale)
    wide = rounding.unpack(*pair).astype(dtype)
    return wide.swapaxes(-1, -2) if path[0].key == 'layers' else wide

  return jax.tree_util.tree_map_with_path(
    one, params, is_leaf=few_bits.is_packed
  )


def summed(params: dict[str, Any]) -> dict[str, Any]:
  """Parameters of `lora.join` with the adapter merged into them."""
  rest = {key: part for key, part in params.items() if key != lora.KEY}
  return lora.merge(rest, params[lora.KEY])
