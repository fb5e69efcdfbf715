# SPDX-License-Identifier: Apache-2.0
"""How a kernel in Triton is called."""

from collections.abc import Callable
from typing import Any

from jax.experimental import pallas as pl

from ops import dispatch
from ops.triton.backend import plgpu


def kernel_call(
  kernel: Callable[..., None],
  name: str,
  grid: tuple[int, ...],
  out_shape: Any,
  *,
  warps: int,
  stages: int = 1,
  aliases: dict[int, int] | None = None,
) -> Callable[..., Any]:
  """A `pallas_call` for Triton, interpreted on a CPU.

  Args:
    kernel: of references to inputs and results.
    name: of the kernel.
    grid: programs along each axis.
    out_shape: shapes and types of the results.
    warps: of a program.
    stages: turns of its loops in flight.
    aliases: input -> result that has its memory.
  """
  return pl.pallas_call(
    kernel,
    grid=grid,
    out_shape=out_shape,
    input_output_aliases=aliases or {},
    compiler_params=plgpu.CompilerParams(num_warps=warps, num_stages=stages),
    interpret=dispatch.platform() == 'cpu',
    name=name,
  )
