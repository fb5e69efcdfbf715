# SPDX-License-Identifier: Apache-2.0
"""Muon (Jordan et al., 2024) as an optax transform over stacks of matrices."""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

import ops
from zaya_jax.parallel import mesh, placement

# Brings the root mean square of an update to that of AdamW (Liu et al., 2025,
# "Muon is scalable for LLM training"), so that both share a learning rate.
_RMS = 0.2


class ScaleByMuonState(NamedTuple):
  """State of `scale_by_muon`."""

  momentum: optax.Updates  # Shapes, dtypes and shardings of the parameters.


def scale_by_muon(
  *,
  momentum: float = 0.95,
  nesterov: bool = True,
  split: tuple[str, ...] = (),
  message_dtype: jnp.dtype = jnp.float32,
  **how: Any,
) -> optax.GradientTransformationExtraArgs:
  """Replaces each matrix of momentum by its nearest orthogonal one.

  `m <- momentum * m + g`; with Nesterov `u = g + momentum * m`, else `u = m`;
  the update is `0.2 * sqrt(max(rows, columns)) * newton_schulz(u)`. All but
  the last two dimensions of a leaf count matrices, each treated alone. `update`
  takes `scale` and `apply`, see `ops.muon_momentum`.

  Args:
    momentum: decay of the momentum.
    nesterov: whether to look ahead.
    split: last path components of leaves that are two matrices side by side
      along the last dimension, to be treated apart.
    message_dtype: of momentum, and of the results, where devices send them to
      each other; rounded to it everywhere, so that no mesh differs.
    **how: of `ops.newton_schulz`.

  References:
    Jordan et al., "Muon: an optimizer for hidden layers", 2024.
  """

  def init(params):
    return ScaleByMuonState(jax.tree.map(jnp.zeros_like, params))

  def update(grads, state, params=None, *, scale=1.0, apply=None, **_):
    del params
    new, ahead = _momentum(
      *(state.momentum, grads, scale, apply),
      decay=momentum,
      nesterov=nesterov,
      dtype=message_dtype,
    )

    def halves(path, u):
      name = getattr(path[-1], 'key', '') if path else ''  # A single array.
      return jnp.split(u, 2 if name in split else 1, axis=-1)

    parts = jax.tree_util.tree_map_with_path(halves, ahead)
    leaves, structure = jax.tree.flatten(parts)
    done = orthogonalize_on_mesh(leaves, **how)
    joined = jax.tree.map(
      lambda u, halves: (
        halves[0] if len(halves) == 1 else jnp.concatenate(halves, axis=-1)
      ),
      ahead,
      jax.tree.unflatten(structure, done),
    )
    return joined, ScaleByMuonState(new)

  return optax.GradientTransformationExtraArgs(init, update)


def select(apply: jax.Array, new: Any, old: Any) -> Any:
  """New where `apply`, else old, of an optax state.

  Args:
    apply: bool scalar, which `update` of the transforms in it had.
    new: state; of `scale_by_muon` it is selected already.
    old: state.
  """
  is_muon = lambda state: isinstance(state, ScaleByMuonState)
  one = lambda new, old: new if is_muon(new) else jnp.where(apply, new, old)
  return jax.tree.map(one, new, old, is_leaf=is_muon)


def _momentum(momenta, grads, scale, apply, **how):
  """The new momenta, and what is to be orthogonalized: `ops.muon_momentum`."""
  leaves, structure = jax.tree.flatten(momenta)
  specs = [jax.typeof(m).sharding.spec for m in leaves]
  run = mesh.on_each(
    lambda m, g, scale, apply: ops.muon_momentum(
      m, g, scale=scale, apply=apply, **how
    ),
    in_specs=(specs, specs, P(), P()),
    out_specs=(specs, specs),
  )
  found = run(leaves, jax.tree.leaves(grads), jnp.float32(scale), apply)
  return tuple(jax.tree.unflatten(structure, part) for part in found)


def orthogonalize_on_mesh(
  leaves: list[jax.Array], **how: Any
) -> list[jax.Array]:
  """`orthogonalize` of each array, whole matrices divided among the devices.

  Matrices of one shape, or its transpose, become one stack, which is padded to
  a multiple of the devices. One all-to-all brings each device whole matrices of
  its own, and one takes them back: within the iteration nothing is sent.

  Args:
    leaves: [..., m, n], divided as `partition.part_spec` says.
    **how: of `ops.newton_schulz`.

  Returns:
    Arrays of the same shapes, divided alike, as of `orthogonalize`.
  """
  specs = [jax.typeof(u).sharding.spec for u in leaves]
  shapes, cuts = [u.shape[-2:] for u in leaves], [_cut(spec) for spec in specs]

  def local(*leaves):
    done = [None] * len(leaves)
    stacks = {}
    for i, (shape, (dim, axes)) in enumerate(zip(shapes, cuts, strict=True)):
      wide = shape[0] < shape[1]
      if wide and dim:
        dim = -3 - dim
      stacks.setdefault((max(shape), min(shape), dim, axes), []).append(
        (i, wide)
      )
    for (*_, dim, axes), members in stacks.items():
      tall = [leaves[i].mT if wide else leaves[i] for i, wide in members]
      flat = [u.reshape(-1, *u.shape[-2:]) for u in tall]
      stack = _on_devices(
        functools.partial(ops.newton_schulz, **how),
        jnp.concatenate(flat),
        dim,
        axes,
      )
      ends = np.cumsum([len(part) for part in flat])[:-1]
      parts = zip(members, tall, jnp.split(stack, ends), strict=True)
      for (i, wide), u, out in parts:
        out = out.reshape(u.shape)
        done[i] = out.mT if wide else out
    return done

  run = mesh.on_each(local, in_specs=tuple(specs), out_specs=specs)
  return [_scale(u) for u in run(*leaves)]  # Of whole matrices, not of parts.


def orthogonalize(u: jax.Array, **how: Any) -> jax.Array:
  """Orthogonal matrices, each element about 0.2 in root mean square.

  Args:
    u: [..., m, n].
    **how: of `ops.newton_schulz`.

  Returns:
    [..., m, n] float32.
  """
  return _scale(ops.newton_schulz(u, **how))


def _scale(u):
  return _RMS * max(u.shape[-2:]) ** 0.5 * u.astype(jnp.float32)


def _cut(spec) -> tuple[int | None, tuple[str, ...]]:
  """Which of the last two dimensions is divided, -2 or -1, by which axes.

  Of matrices that are whole: None, and the axes along which there are copies.
  """
  for dim in (-2, -1):
    if spec[dim]:
      axes = spec[dim]
      return dim, (axes,) if isinstance(axes, str) else tuple(axes)
  taken = placement.axes_of(spec)
  return None, tuple(
    a for a, n in mesh.sizes().items() if n > 1 and a not in taken
  )


def _on_devices(f, stack, dim, axes):
  """F of a stack, each device of `axes` computing some of its matrices.

  Args:
    f: of [M, rows, columns].
    stack: the same, but for the dimension that is divided, if one is.
    dim: that dimension, -2 or -1; None: all devices have the same.
    axes: of the mesh.
  """
  n = math.prod(mesh.size(a) for a in axes)
  if n == 1:
    return f(stack)
  count = len(stack)
  stack = jnp.pad(stack, ((0, -count % n), (0, 0), (0, 0)))
  # XLA:CPU cannot send parts of which it knows that some are padding.
  stack = jax.lax.optimization_barrier(stack)
  if dim is None:
    each = len(stack) // n
    first = jax.lax.axis_index(axes) * each
    mine = jax.lax.dynamic_slice_in_dim(stack, first, each)
    stack = jax.lax.all_gather(f(mine), axes, tiled=True)
  else:
    dim += stack.ndim
    whole = jax.lax.all_to_all(stack, axes, 0, dim, tiled=True)
    stack = jax.lax.all_to_all(f(whole), axes, dim, 0, tiled=True)
  return stack[:count]
