# SPDX-License-Identifier: Apache-2.0
"""JAX's Triton backend, for jax without it too.

JAX deprecates it from 0.11 on. Where it is gone nothing here breaks: engines
that need it say so, and the next ones run, which are HIP's on ROCm and those
for Hopper on CUDA.
"""

from collections.abc import Callable
from typing import Any

import jax

from ops import dispatch

plgpu: Any
try:
  from jax.experimental.pallas import triton as plgpu
except ImportError:
  plgpu = None


def unavailable() -> str | None:
  """Why no kernel in Triton can run."""
  if plgpu is None:
    return f'jax {jax.__version__} has no backend for Triton'
  return None


def runs() -> bool:
  """Whether kernels in Triton run on the device of this process, a GPU."""
  return dispatch.platform() in dispatch.GPUS and not unavailable()


def engine(
  run: Callable[..., Any],
  unsupported: Callable[..., str | None],
  slower: Callable[..., str | None] = lambda *_, **__: None,
) -> dispatch.Engine:
  """The engine 'triton' of an operation, for both kinds of GPU."""
  return dispatch.Engine(
    'triton',
    run,
    lambda *args, **kwargs: unavailable() or unsupported(*args, **kwargs),
    platforms=dispatch.GPUS,
    slower=slower,
  )
