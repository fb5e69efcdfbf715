# SPDX-License-Identifier: Apache-2.0
"""Programs for GPUs, lowered on a machine that has none."""

import contextlib
from collections.abc import Iterator
from unittest import mock

import jax
from jax._src.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, math, scf  # noqa: F401
from jaxlib.triton import dialect as triton

# Of what jax asks before it lowers a kernel in Triton: an H200, an MI300X.
_KINDS = {'cuda': ('9.0', 90), 'rocm': ('gfx942', 0)}


def lower(traced: jax.stages.Traced, platform: str) -> jax.stages.Lowered:
  """A traced program for 'cuda' or 'rocm'."""
  with _described(platform):
    return traced.lower(lowering_platforms=(platform,))


def kernels(lowered):
  """The Triton modules of a program, verified: jax itself does not look."""
  found = []

  def walk(operation):
    for region in operation.regions:
      for block in region.blocks:
        for inner in block.operations:
          walk(inner.operation)
    if 'call_target_name' in operation.attributes:
      if 'xla.gpu.triton' in str(operation.attributes['call_target_name']):
        config = operation.attributes['mhlo.backend_config']
        found.append(config['ir'].value_bytes)

  walk(lowered.compiler_ir('stablehlo').operation)
  with mlir.make_ir_context() as context:
    triton.register_dialect(context)
    return [ir.Module.parse(code) for code in dict.fromkeys(found)]


@contextlib.contextmanager
def _described(platform: str) -> Iterator[None]:
  """Inside, jax from 0.11 on takes the machine for one with such a GPU."""
  if jax.__version_info__ < (0, 11):
    yield
    return
  from jax._src.pallas.triton import gpu_info

  name, capability = _KINDS[platform]
  info = gpu_info.GpuInfo(
    gpu_version=None, arch_name=name, compute_capability=capability
  )
  with mock.patch.object(gpu_info, 'get_gpu_info', lambda: info):
    yield
