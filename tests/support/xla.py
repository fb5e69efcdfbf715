# SPDX-License-Identifier: Apache-2.0
"""Flags of XLA for tests, which compile far longer than they compute.

Imports nothing that imports jax: the flags are read when jax starts.
"""

import importlib.metadata


def fast_compile() -> list[str]:
  """Halves the time of compiling, twice."""
  flags = ['--xla_backend_optimization_level=0']
  # The other core has tests of its own.
  flags.append('--xla_cpu_parallel_codegen_split_count=1')
  version = importlib.metadata.version('jaxlib').split('.')
  # Later ones do not know it, and a flag that XLA does not know ends it.
  if tuple(map(int, version[:2])) < (0, 11):
    flags.append('--xla_cpu_use_fusion_emitters=false')
  return flags
