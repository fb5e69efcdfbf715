# SPDX-License-Identifier: Apache-2.0
"""Muon (Jordan et al., 2024) as an optax transform over stacks of matrices."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

import ops
from zaya_jax import mesh

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
  steps: int = 5,
  split: tuple[str, ...] = (),
  dtype: jnp.dtype | None = None,
) -> optax.GradientTransformation:
  """Replaces each matrix of momentum by its nearest orthogonal one.

  `m <- momentum * m + g`; with Nesterov `u = g + momentum * m`, else `u = m`;
  the update is `0.2 * sqrt(max(rows, columns)) * newton_schulz(u)`. All but
  the last two dimensions of a leaf count matrices, each treated alone.

  Args:
    momentum: decay of the momentum.
    nesterov: whether to look ahead.
    steps: Newton-Schulz iterations.
    split: last path components of leaves that are two matrices side by side
      along the last dimension, to be treated apart.
    dtype: type of the iteration; None: that of the gradients.

  References:
    Jordan et al., "Muon: an optimizer for hidden layers", 2024.
  """

  def init(params):
    return ScaleByMuonState(jax.tree.map(jnp.zeros_like, params))

  def update(grads, state, params=None):
    del params
    new = jax.tree.map(lambda m, g: momentum * m + g, state.momentum, grads)
    ahead = new
    if nesterov:
      ahead = jax.tree.map(lambda m, g: g + momentum * m, new, grads)

    def halves(path, u):
      name = getattr(path[-1], 'key', '') if path else ''  # A single array.
      return jnp.split(u, 2 if name in split else 1, axis=-1)

    parts = jax.tree_util.tree_map_with_path(halves, ahead)
    leaves, structure = jax.tree.flatten(parts)
    if mesh.num_parts() == 1:
      done = [orthogonalize(u, steps=steps, dtype=dtype) for u in leaves]
    else:
      done = orthogonalize_on_mesh(leaves, steps=steps, dtype=dtype)
    joined = jax.tree.map(
      lambda u, halves: (
        halves[0] if len(halves) == 1 else jnp.concatenate(halves, axis=-1)
      ),
      ahead,
      jax.tree.unflatten(structure, done),
    )
    return joined, ScaleByMuonState(new)

  return optax.GradientTransformation(init, update)


def orthogonalize_on_mesh(
  leaves: list[jax.Array], *, steps: int, dtype: jnp.dtype | None
) -> list[jax.Array]:
  """`orthogonalize` of each array, whole matrices divided among the devices.

  Matrices of one shape, or its transpose, become one stack, which is padded to
  a multiple of the devices. It is resharded once so that each device has
  matrices of its own, and once back: within the iteration nothing is sent.

  Args:
    leaves: [..., m, n], divided as `mesh.scatter` does.
    steps: Newton-Schulz iterations.
    dtype: type of the iteration; None: that of the arrays.

  Returns:
    Arrays of the same shapes, divided alike.
  """
  stacks = {}
  for i, u in enumerate(leaves):
    tall = u if u.shape[-2] >= u.shape[-1] else u.mT
    stacks.setdefault(tall.shape[-2:], []).append((i, tall))
  done = [None] * len(leaves)
  for (rows, columns), members in stacks.items():
    axes = (None, 'part' if rows % mesh.num_parts() == 0 else None, None)
    flat = [
      mesh.reshard(u.reshape(-1, rows, columns), *axes) for _, u in members
    ]
    stack = jnp.concatenate(flat)
    padding = -len(stack) % mesh.num_parts()
    stack = jnp.pad(stack, ((0, padding), (0, 0), (0, 0)))
    local = mesh.per_device(
      lambda x: orthogonalize(x, steps=steps, dtype=dtype),
      in_axes=[('matrices', None, None)],
      out_axes=('matrices', None, None),
    )
    stack = mesh.reshard(
      local(mesh.reshard(stack, 'matrices', None, None)), *axes
    )
    begin = 0
    for (i, u), part in zip(members, flat, strict=True):
      out = stack[begin : begin + len(part)].reshape(u.shape)
      begin += len(part)
      done[i] = out if u.shape == leaves[i].shape else out.mT
  return done


def orthogonalize(
  u: jax.Array, *, steps: int, dtype: jnp.dtype | None
) -> jax.Array:
  """[..., m, n] orthogonalized, each element about 0.2 in root mean square."""
  scale = _RMS * max(u.shape[-2:]) ** 0.5
  return scale * ops.newton_schulz(u, steps=steps, dtype=dtype)
