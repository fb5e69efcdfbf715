# SPDX-License-Identifier: Apache-2.0
"""Flags of XLA for tests, which compile far longer than they compute.

Imports nothing that imports jax: the flags are read when jax starts.
"""

from zaya_jax.aegis.drills import trial


def fast_compile() -> list[str]:
  """A quarter of the time of compiling."""
  # The other core has tests of its own.
  return [*trial.fast_compile(), '--xla_cpu_parallel_codegen_split_count=1']
