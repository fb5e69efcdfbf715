# SPDX-License-Identifier: Apache-2.0
"""Kernels for Hopper GPUs are compiled while others are still lowered.

XLA compiles the kernels of a program one after another, 0.75 s each, when all
of it is lowered, which Python does on one processor, half a second each. What
it has made of a kernel stays in the process, under the hash of the kernel. So a
thread compiles each one as soon as it is lowered, in a program of its own that
nobody runs; XLA then finds them.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
from jax.experimental.mosaic import gpu as mosaic

from ops.hopper import warp_groups

_LOOK_S = 0.05
_TARGET = 'mosaic_gpu_v2'  # As JAX calls a kernel.


@contextlib.contextmanager
def compiling() -> Iterator[None]:
  """Inside, lower a program and compile it; on Hopper GPUs that is quicker."""
  known = getattr(mosaic.core, 'KNOWN_KERNELS', None)
  if known is None or warp_groups.unavailable():
    yield
    return
  done = threading.Event()
  thread = threading.Thread(
    target=_compile_all, args=(known, done), name='kernels', daemon=True
  )
  thread.start()
  try:
    yield
  finally:
    done.set()
    thread.join()


def _compile_all(known: dict[bytes, bytes], done: threading.Event) -> None:
  """Compiles each kernel that appears, until `done`."""
  seen: set[bytes] = set()
  while not done.wait(_LOOK_S):
    for name, module in list(known.items()):
      if name in seen or done.is_set():
        continue
      seen.add(name)
      try:
        _compile(name, module)
      except (jax.errors.JaxRuntimeError, TypeError, ValueError):
        return  # Whoever needs the kernel hears of it.


def _compile(name: bytes, module: bytes) -> None:
  jax.jit(program(name, module)).lower().compile()


def program(name: bytes, module: bytes) -> Callable[[], jax.Array]:
  """A program of one kernel, which nobody runs.

  Args:
    name: the hash of the kernel.
    module: the kernel as JAX has lowered it.
  """
  call = jax.ffi.ffi_call(_TARGET, jax.ShapeDtypeStruct((1,), jnp.float32))
  return lambda: call(
    kernel_hash=name,
    module=module,
    use_custom_barrier=False,
    skip_device_barrier=False,
    uses_xla_collective_metadata=False,
    # To be compiled, not loaded from JAX's cache, which leaves nothing behind.
    ahead=os.urandom(8),
  )
