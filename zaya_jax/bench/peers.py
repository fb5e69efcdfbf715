# SPDX-License-Identifier: Apache-2.0
"""What JAX's own libraries offer for an operation, to be timed beside ours.

Each is a function of the arguments of the operation, in the setting that is
fastest for it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from optax.contrib import _muon


def _optax(x, *, steps, dtype):
  x, kind = x.astype(dtype), x.dtype
  numbers = _muon.MuonDimensionNumbers(x.ndim - 2, x.ndim - 1)
  out = _muon.orthogonalize_via_newton_schulz(
    x,
    jax.numpy.asarray((3.4445, -4.7750, 2.0315)),
    ns_steps=steps,
    dimension_numbers=numbers,
  )
  return out.astype(kind)


PEERS: Mapping[str, Mapping[str, Callable[..., Any]]] = {
  'newton_schulz': {'optax.contrib.muon': _optax},
}
