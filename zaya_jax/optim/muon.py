# SPDX-License-Identifier: Apache-2.0
"""Muon (Jordan et al., 2024) as an optax transform over stacks of matrices."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

import ops

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

    def one(path, u):
      name = getattr(path[-1], 'key', '') if path else ''  # A single array.
      halves = 2 if name in split else 1
      parts = jnp.split(u, halves, axis=-1)
      parts = [orthogonalize(p, steps=steps, dtype=dtype) for p in parts]
      return parts[0] if halves == 1 else jnp.concatenate(parts, axis=-1)

    return (
      jax.tree_util.tree_map_with_path(one, ahead),
      ScaleByMuonState(new),
    )

  return optax.GradientTransformation(init, update)


def orthogonalize(
  u: jax.Array, *, steps: int, dtype: jnp.dtype | None
) -> jax.Array:
  """[..., m, n] orthogonalized, each element about 0.2 in root mean square."""
  scale = _RMS * max(u.shape[-2:]) ** 0.5
  return scale * ops.newton_schulz(u, steps=steps, dtype=dtype)
