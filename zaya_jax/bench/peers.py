# SPDX-License-Identifier: Apache-2.0
"""What JAX's own libraries offer for an operation, to be timed beside ours.

Each is a function of the arguments of the operation, in the setting that is
fastest for it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax.contrib import _muon

import ops


def _optax(x, *, steps, dtype, **_):
  x, kind = x.astype(dtype), x.dtype
  numbers = _muon.MuonDimensionNumbers(x.ndim - 2, x.ndim - 1)
  out = _muon.orthogonalize_via_newton_schulz(
    x,
    jnp.asarray((3.4445, -4.7750, 2.0315)),
    ns_steps=steps,
    dimension_numbers=numbers,
  )
  return out.astype(kind)


def _ragged_dot(x, expert, gate_up, down):
  order, inverse, starts = ops.experts.sort_by_expert(expert, len(gate_up))
  # Skipped tokens go to the last expert, and their results nowhere.
  sizes = jnp.diff(starts).at[-1].add(x.shape[0] - starts[-1])
  h = jax.lax.ragged_dot(x[order], gate_up, sizes)
  gate, up = jnp.split(h, 2, axis=-1)
  y = jax.lax.ragged_dot(jax.nn.silu(gate) * up, down, sizes)[inverse]
  return jnp.where((expert < len(gate_up))[:, None], y, 0)


def _attention(q, k, v, *, window=None, q_segments_BL=None, **_):
  mask = None
  if q_segments_BL is not None:
    mask = q_segments_BL[:, None, :, None] == q_segments_BL[:, None, None]
  if window is not None:
    place = jnp.arange(q.shape[1])
    near = (place[:, None] - place[None] < window)[None, None]
    mask = near if mask is None else mask & near
  return jax.nn.dot_product_attention(
    q, k, v, mask=mask, is_causal=True, implementation='xla'
  )


def _cross_entropy(x, head, target, weight, bias=None):
  logits = jnp.dot(x, head.T).astype(jnp.float32)
  if bias is not None:
    logits += bias[None]
  nats = optax.softmax_cross_entropy_with_integer_labels(logits, target)
  return jnp.sum(nats * weight)


PEERS: Mapping[str, Mapping[str, Callable[..., Any]]] = {
  'attention': {'jax.nn': _attention},
  'cross_entropy': {'optax': _cross_entropy},
  'experts': {'lax.ragged_dot': _ragged_dot},
  'newton_schulz': {'optax.contrib.muon': _optax},
}
