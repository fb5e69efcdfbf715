# SPDX-License-Identifier: Apache-2.0
"""Parameters of which some matrices are packed into few bits.

A tree of parameters has `ops.experts.packed.Packed` [..., out, in] in place of
a matrix [..., in, out]. The network is that of the wide matrices: each layer
widens its own, so that one layer's are wide at a time.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import traverse_util

from ops.experts import packed
from zaya_jax import config as config_lib
from zaya_jax.model import layers, lora, shapes


def is_packed(leaf: Any) -> bool:
  """Whether a leaf of the parameters is packed."""
  return isinstance(leaf, packed.Packed)


def split(
  config: config_lib.ModelConfig, params: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any] | None]:
  """Parameters without what each layer adds to its matrices, and that.

  Args:
    config: of the model.
    params: nested dict; of `lora.join` with an adapter beside it.

  Returns:
    Nested dict of arrays, empty ones where the matrices of layers are packed,
    and the adapter with these matrices in it; None: there is nothing to add.
  """
  params = dict(params)
  adapter = params.pop(lora.KEY, None)
  flat = traverse_util.flatten_dict(params, sep='/')
  beside = {
    path: leaf
    for path, leaf in flat.items()
    if path.startswith('layers/') and is_packed(leaf)
  }
  if beside:
    dtype = layers.compute_dtype(config)  # In which layers multiply it.
    for path, leaf in beside.items():
      flat[path] = jnp.zeros((leaf.shape[0], 0), dtype)
    found = traverse_util.flatten_dict(adapter or {}, sep='/')
    found |= {f'{path}/{shapes.PACKED}': leaf for path, leaf in beside.items()}
    adapter = traverse_util.unflatten_dict(found, sep='/')
  # What is left is of no layer.
  return whole(config, traverse_util.unflatten_dict(flat, sep='/')), adapter


def whole(
  config: config_lib.ModelConfig, params: dict[str, Any]
) -> dict[str, Any]:
  """Parameters with wide matrices, in the compute type; embeddings float32."""
  dtype = layers.compute_dtype(config)

  def one(path, leaf):
    if not is_packed(leaf):
      return leaf
    of_layer = path[0].key == 'layers'
    return wide(leaf, dtype) if of_layer else packed.widen(leaf, jnp.float32)

  return jax.tree_util.tree_map_with_path(one, params, is_leaf=is_packed)


def wide(matrix: packed.Packed, dtype: Any) -> jax.Array:
  """[..., in, out] in `dtype`."""
  return packed.widen(matrix, dtype).swapaxes(-1, -2)


def rows(w: packed.Matrix, dtype: Any) -> packed.Matrix:
  """A matrix of parameters as [..., out, in], which what is packed is."""
  if isinstance(w, packed.Packed):
    return w
  return w.swapaxes(-1, -2).astype(dtype)


def narrow(w: packed.Matrix, dtype: Any) -> packed.Matrix:
  """A matrix in `dtype`, if it is not packed."""
  return w if isinstance(w, packed.Packed) else w.astype(dtype)


def num_bytes(params: Any) -> int:
  """Bytes of parameters."""
  return sum(leaf.nbytes for leaf in jax.tree.leaves(params))
