# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters (LoRA; arXiv 2106.09685): W + s * A @ B in place of W.

Each layer makes the sum of its matrices and works with it as with any matrix:
so every kernel, mesh and mode computes the same function as a model into which
the adapter was merged, and the experts' grouped products stay one each. What it
costs: 2 r E D F products a matrix and pass, whatever the tokens; a pass over
the weights of a layer; and, going back, the gradient of the sum, of one layer
at a time, out of which the two factors take theirs. X @ A @ B beside X @ W
would do without that gradient, but with two more grouped products of width r,
which use a few of the columns of a tile, and passes over all hidden units.

Axis letters: N layers, E experts, D rows, F columns, r rank.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from ops.experts import packed
from zaya_jax import config as config_lib
from zaya_jax.model import layers, shapes

# Beside the parameters of a model, its adapter with the scale in it.
KEY = 'lora'


def init(
  model: config_lib.ModelConfig, lora: config_lib.LoraConfig, key: jax.Array
) -> dict[str, Any]:
  """A new adapter, which changes nothing yet: B is 0.

  A is uniform in +-1 / sqrt(D), as PEFT's.

  Args:
    model: to be adapted.
    lora: rank and targets.
    key: of the random numbers.

  Returns:
    Nested dict of float32 arrays: `shapes.adapters`.
  """
  found = {}
  for n, (path, shape) in enumerate(shapes.adapters(model, lora).items()):
    if path.endswith(shapes.FACTORS[1]):
      found[path] = jnp.zeros(shape, jnp.float32)
      continue
    bound = 1 / math.sqrt(shape[-2])
    found[path] = jax.random.uniform(
      jax.random.fold_in(key, n), shape, jnp.float32, -bound, bound
    )
  return traverse_util.unflatten_dict(found, sep='/')


def frozen_dtype(
  model: config_lib.ModelConfig, path: str, stored: Any = np.float32
) -> np.dtype:
  """The type in which a parameter that is not trained stays on the devices.

  Layers multiply the matrices of attention and experts in the compute type, so
  these lose nothing in it; an embedding that is stored in half precision stays
  so. All else is float32.

  Args:
    model: of the base.
    path: of the parameter.
    stored: its type in the base.
  """
  if path in shapes.MULTIPLIED:
    return np.dtype(layers.compute_dtype(model))
  half = np.dtype(stored).itemsize < 4 and path in ('embed', 'head')
  return np.dtype(stored if half else np.float32)


def join(
  params: dict[str, Any], adapter: dict[str, Any], scale: float
) -> dict[str, Any]:
  """Parameters with an adapter beside them, as `zaya.bind` takes them.

  Args:
    params: of the base.
    adapter: of `init`.
    scale: s, of `LoraConfig.scale`.
  """

  def scaled(path, w):
    return w * scale if path[-1].key == shapes.FACTORS[1] else w

  return {**params, KEY: jax.tree_util.tree_map_with_path(scaled, adapter)}


def in_a_loop(model: config_lib.ModelConfig) -> config_lib.ModelConfig:
  """The model with one layer's sums at a time, if nothing goes back through it.

  Of layers that are written out XLA may make all sums before the first layer
  uses its own: on a CPU it does.

  Args:
    model: whose layers may be written out (--model.scan_layers=false).
  """
  return dataclasses.replace(model, scan_layers='true')


def merge(tree: Any, adapter: dict[str, Any]) -> Any:
  """The tree with A @ B added to each matrix that has factors.

  Args:
    tree: parameters, or the module of one layer; jax or NumPy arrays.
    adapter: with the scale in it, whose paths are those of the tree. It also
      has the matrices that are packed (`model.packed`), in place of the tree's.

  Returns:
    A tree like `tree`, in its types; sums are float32.
  """
  factors = traverse_util.flatten_dict(adapter, sep='/')

  def one(path, w):
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    name = name.removesuffix('/value')  # Of a parameter within its module.
    if (few := factors.get(f'{name}/{shapes.PACKED}')) is not None:
      w = packed.widen(few, w.dtype).swapaxes(-1, -2)
    a, b = (factors.get(f'{name}/{factor}') for factor in shapes.FACTORS)
    return w if a is None else add(w, a, b)

  return jax.tree_util.tree_map_with_path(one, tree)


def add(w: Any, a: Any, b: Any) -> Any:
  """W + A @ B, [..., D, F] in the type of W; the sum is float32 at least."""
  wide = jnp.promote_types(w.dtype, np.float32)
  return (w.astype(wide) + a @ b).astype(w.dtype)
