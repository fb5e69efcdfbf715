# SPDX-License-Identifier: Apache-2.0
"""Which device holds which part of a parameter, and of its optimizer state.

The rules are those of `placement`; here arrays are placed, summed and gathered
by them.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from zaya_jax.parallel import mesh, placement

# What layers gather for the forward pass and keep; fsdp they gather twice.
BUT_FSDP = tuple(axis for axis in placement.AXES if axis != 'fsdp')


def param_spec(
  name: str, shape: tuple[int, ...], sizes: Mapping[str, int]
) -> P:
  """Which part of a parameter layers see, as `placement.param_dims` says."""
  return P(*placement.param_dims(name, shape, sizes))


def part_spec(name: str, shape: tuple[int, ...], sizes: Mapping[str, int]) -> P:
  """Where it lives, and its optimizer state: `placement.part_dims` says."""
  return P(*placement.part_dims(name, shape, sizes))


def param_specs(params: Any) -> Any:
  """`param_spec` of each leaf of a tree of whole shapes, on this mesh."""
  return _specs(param_spec, params)


def part_specs(params: Any) -> Any:
  """`part_spec` of each leaf of a tree of whole shapes, on this mesh."""
  return _specs(part_spec, params)


def place(params: Any) -> Any:
  """Parameters where they live: each device keeps its part (ZeRO-1)."""
  return mesh.reshard(params, part_specs(params))


def unite(params: Any) -> Any:
  """Parameters as layers see them: whole, unless fsdp or expert divide them."""
  return mesh.reshard(params, param_specs(params))


def gather(
  tree: Any,
  like: Any,
  prefix: str = '',
  axes: Sequence[str] = placement.AXES,
  narrow: Callable[[str], Any] = lambda name: None,
) -> Any:
  """Whole parameters from this device's parts, inside of `mesh.on_each`.

  Their gradient is the sum over these axes, in float32, of this device's part.
  What is whole already stays as it is, and the axis `expert` divides experts
  still: a device computes its own alone.

  Args:
    tree: of arrays; of one layer, if the prefix is that of a layer.
    like: the tree with whole shapes, the dimension of layers included.
    prefix: path of the tree among the parameters, as 'layers/'.
    axes: of the mesh, along which to gather; fsdp, if others divide too, last.
    narrow: path -> the type in which parts are sent; None: their own.
  """
  sizes = mesh.sizes()

  def one(path, a, like):
    name = prefix + _name(path)
    dim, cut = _still_cut(name, a, like.shape, sizes)
    sent = tuple(axis for axis in cut if axis in axes)
    return _gather(a, sent, dim, narrow(name)) if sent else a

  return jax.tree_util.tree_map_with_path(one, tree, like)


def gather_outer(params: Any, like: Any) -> Any:
  """The same of what no layer gathers itself: all but the layers' matrices."""

  def one(path, a, like):
    if placement.is_of_layer(_name(path), like.shape):
      return a
    return gather(a, like, _name(path))

  return jax.tree_util.tree_map_with_path(one, params, like)


def gather_once(
  params: Any, like: Any, narrow: Callable[[str], Any] = lambda name: None
) -> Any:
  """The same of all, before layers use them more than once; but for fsdp."""

  def one(path, a, like):
    name = _name(path)
    run = lambda a: gather(a, like, name, BUT_FSDP, narrow)
    if is_part(name, a, like.shape) and _by_layer(name, like):
      return jax.lax.map(run, a)
    return run(a)

  return jax.tree_util.tree_map_with_path(one, params, like)


def is_part(name: str, a: jax.Array, shape: tuple[int, ...]) -> bool:
  """Whether axes other than `expert` and fsdp still divide an array.

  Args:
    name: the path of the parameter.
    a: of this device, or one layer of it.
    shape: whole, the dimension of layers included.
  """
  cut = _still_cut(name, a, shape, mesh.sizes())[1]
  return any(axis in BUT_FSDP for axis in cut)


def sum_gradients(grads: Any, params: Any) -> Any:
  """Sums each gradient over devices; returns this device's part of the sums.

  Inside of `mesh.on_each`. One reduce-scatter per leaf, or per layer of a large
  leaf, in the type of the parameters; none, where `gather` has done it.

  Args:
    grads: of this device's tokens, shaped as it computed with them.
    params: the same tree with whole shapes, and the types of the sums.
  """
  sizes = mesh.sizes()

  def one(path, grad, like):
    name = _name(path)
    after = part_spec(name, like.shape, sizes)
    dim, cut = _cut(name, like.shape, sizes)
    done = _still_cut(name, grad, like.shape, sizes)[1]
    axes = tuple(axis for axis in cut if axis not in done)
    # Experts have summed over their axis where they sent what they computed.
    rest = tuple(sorted(set(sizes) - placement.axes_of(after)))

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
  """Parameters plus updates, where `good`; else what they are."""
  return jax.tree.map(
    lambda p, u: jnp.where(good, p + u.astype(p.dtype), p), params, updates
  )


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _gather(a, axes, dim, dtype):
  a = a if dtype is None else a.astype(dtype)
  return jax.lax.all_gather(a, axes, axis=dim, tiled=True)


def _gather_fwd(a, axes, dim, dtype):
  return _gather(a, axes, dim, dtype), None


def _gather_bwd(axes, dim, dtype, _, g):
  del dtype
  g = g.astype(jnp.float32)
  return (jax.lax.psum_scatter(g, axes, scatter_dimension=dim, tiled=True),)


_gather.defvjp(_gather_fwd, _gather_bwd)


def _specs(rule, params):
  sizes = mesh.sizes()
  return jax.tree_util.tree_map_with_path(
    lambda path, a: rule(_name(path), a.shape, sizes), params
  )


def _cut(name, shape, sizes) -> tuple[int, tuple[str, ...]]:
  """The dimension in which parts lie, and the axes that divide it."""
  before = param_spec(name, shape, {**sizes, 'fsdp': 1})
  for dim, (old, new) in enumerate(
    zip(before, part_spec(name, shape, sizes), strict=True)
  ):
    if old != new:
      return dim, (new,) if isinstance(new, str) else new
  return 0, ()


def _still_cut(name, a, shape, sizes) -> tuple[int, tuple[str, ...]]:
  """The same of an array: the outer ones of these axes, as its shape tells.

  The dimension is that of the array, which may be one layer's.
  """
  dim, axes = _cut(name, shape, sizes)
  if not a.size:  # It stands for a matrix that lies elsewhere: `model.packed`.
    return dim, ()
  dim -= len(shape) - a.ndim
  parts = shape[dim - a.ndim] // a.shape[dim] if axes else 1
  count = 0
  while parts > 1:
    parts //= sizes[axes[count]]
    count += 1
  return dim, axes[:count]


def _by_layer(name, a):
  return name.startswith('layers/') and a.size * 4 > placement.STACK_BYTES


def _name(path):
  name = jax.tree_util.keystr(path, simple=True, separator='/')
  return name.removesuffix('/value')  # Of a parameter within its module.
