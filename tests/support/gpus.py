# SPDX-License-Identifier: Apache-2.0
"""Programs for GPUs, lowered on a machine that has none."""

import contextlib
from collections.abc import Iterator
from unittest import mock

import jax

# Of what jax asks before it lowers a kernel in Triton: an H200, an MI300X.
_KINDS = {'cuda': ('9.0', 90), 'rocm': ('gfx942', 0)}


def lower(traced: jax.stages.Traced, platform: str) -> jax.stages.Lowered:
  """A traced program for 'cuda' or 'rocm'."""
  with _described(platform):
    return traced.lower(lowering_platforms=(platform,))


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
