# SPDX-License-Identifier: Apache-2.0
"""Which device holds which part of a parameter, and of its optimizer state.

The rules are those of `placement`; here arrays are placed, summed and gathered
by them.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import layout
from jax.sharding import PartitionSpec as P

from zaya_jax.parallel import mesh, placement


def param_spec(
  name: str, shape: tuple[int, ...], sizes: Mapping[str, int]
) -> P:
  """Where a parameter lives, as `placement.param_dims` says."""
  return P(*placement.param_dims(name, shape, sizes))


def part_spec(name: str, shape: tuple[int, ...], sizes: Mapping[str, int]) -> P:
  """Where its optimizer state lives, as `placement.part_dims` says."""
  return P(*placement.part_dims(name, shape, sizes))


def param_specs(params: Any) -> Any:
  """`param_spec` of each leaf of a tree of whole shapes, on this mesh."""
  return _specs(param_spec, params)


def part_specs(params: Any) -> Any:
  """`part_spec` of each leaf of a tree of whole shapes, on this mesh."""
  return _specs(part_spec, params)


def place(params: Any) -> Any:
  """Parameters where they live."""
  return mesh.reshard(params, param_specs(params))


def divide(params: Any) -> Any:
  """Each device's parts of the parameters, for the optimizer."""
  return mesh.reshard(params, part_specs(params))


def gather(tree: Any, whole: Any, prefix: str = '') -> Any:
  """Whole parameters from those of this device, inside of `mesh.on_each`.

  Their gradient is the sum over fsdp of this device's slice. The axis `expert`
  stays: a device computes its own experts alone.

  Args:
    tree: of arrays; of one layer, if the prefix is that of a layer.
    whole: the tree with whole shapes, the dimension of layers included.
    prefix: path of the tree among the parameters, as 'layers/'.
  """
  if mesh.size('fsdp') == 1:
    return tree
  sizes = mesh.sizes()

  def one(path, a, like):
    spec = param_spec(prefix + _name(path), like.shape, sizes)
    if 'fsdp' not in spec:
      return a
    dim = tuple(spec).index('fsdp') - (len(like.shape) - a.ndim)
    return jax.lax.all_gather(a, 'fsdp', axis=dim, tiled=True)

  return jax.tree_util.tree_map_with_path(one, tree, whole)


def sum_gradients(grads: Any, params: Any) -> Any:
  """Sums each gradient over devices; returns this device's part of the sums.

  Inside of `mesh.on_each`. One reduce-scatter per leaf, or per layer of a large
  leaf, in the type of the parameters.

  Args:
    grads: of this device's tokens, shaped as its parameters.
    params: the same tree with whole shapes, and the types of the sums.
  """
  sizes = mesh.sizes()

  def one(path, grad, like):
    name = _name(path)
    before = param_spec(name, like.shape, sizes)
    dim, axes = _beyond(before, part_spec(name, like.shape, sizes))
    # Experts have summed over their axis, and fsdp over its own, where they
    # sent what they computed.
    rest = tuple(sorted(set(sizes) - placement.axes_of(before) - set(axes)))

    def reduce(g, dim):
      g = g.astype(like.dtype)
      if axes:
        g = jax.lax.psum_scatter(g, axes, scatter_dimension=dim, tiled=True)
      return jax.lax.psum(g, rest) if rest else g

    sent = any(sizes[axis] > 1 for axis in (*axes, *rest))
    if sent and _by_layer(name, grad):
      return jax.lax.map(lambda g: reduce(g, dim - 1), grad)
    return reduce(grad, dim)

  return jax.tree_util.tree_map_with_path(one, grads, params)


def apply_updates(params: Any, updates: Any, good: jax.Array) -> Any:
  """Parameters plus updates; one all-gather for each leaf, or large layer.

  Args:
    params: where they live.
    updates: the same tree, divided as the optimizer's state.
    good: bool scalar; if it is false, parameters stay what they are.
  """
  sizes = mesh.sizes()
  shapes = jax.tree.map(
    lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), params
  )

  def one(good, path, param, update, like):
    name = _name(path)
    dim, axes = _beyond(
      param_spec(name, like.shape, sizes), part_spec(name, like.shape, sizes)
    )

    def add(p, u, dim):
      if axes:
        u = jax.lax.all_gather(u, axes, axis=dim, tiled=True)
        # Or XLA may transpose all parameters to fit what it has gathered.
        rows_first = layout.Layout(tuple(range(u.ndim)))
        u = layout.with_layout_constraint(u, rows_first)
      return jnp.where(good, p + u.astype(p.dtype), p)

    if not axes or not _by_layer(name, param):
      return add(param, update, dim)
    # In place: there is one set of parameters.
    return jax.lax.fori_loop(
      0,
      param.shape[0],
      lambda i, p: p.at[i].set(add(p[i], update[i], dim - 1)),
      param,
    )

  def local(good, params, updates):
    return jax.tree_util.tree_map_with_path(
      functools.partial(one, good), params, updates, shapes
    )

  where, parts = param_specs(params), part_specs(params)
  return mesh.on_each(local, in_specs=(P(), where, parts), out_specs=where)(
    good, params, updates
  )


def _specs(rule, params):
  sizes = mesh.sizes()
  return jax.tree_util.tree_map_with_path(
    lambda path, a: rule(_name(path), a.shape, sizes), params
  )


def _beyond(before: P, after: P) -> tuple[int, tuple[str, ...]]:
  """The dimension that `after` divides further, and the axes that do it."""
  for dim, (old, new) in enumerate(zip(before, after, strict=True)):
    if old != new:
      axes = (new,) if isinstance(new, str) else new
      return dim, tuple(a for a in axes if a != old)
  return 0, ()


def _by_layer(name, a):
  return name.startswith('layers/') and a.nbytes > placement.STACK_BYTES


def _name(path):
  name = jax.tree_util.keystr(path, simple=True, separator='/')
  return name.removesuffix('/value')  # Of a parameter within its module.
