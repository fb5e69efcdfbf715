# SPDX-License-Identifier: Apache-2.0
"""JAX's interpreter of kernels for Hopper GPUs, with its detector of races."""

import contextlib
from collections.abc import Iterator

import jax
import pytest
from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks, params

from ops.hopper import persistent

needs_transposes = pytest.mark.skipif(
  jax.__version_info__ < (0, 11), reason='jax interprets no transposed operands'
)


@contextlib.contextmanager
def interpreted(*, detect_races: bool = True) -> Iterator[None]:
  """Inside, kernels run in Python: threads, barriers, copies and all.

  From 0.12 on jax raises at the first race, before that it remembers.
  """
  jax.clear_caches()  # Of kernels that were made otherwise.
  mode = params.InterpretGPUParams(detect_races=detect_races)
  with params.force_gpu_interpret_mode(mode):
    yield
  jax.clear_caches()


@contextlib.contextmanager
def products(
  monkeypatch: pytest.MonkeyPatch, *, detect_races: bool = True
) -> Iterator[None]:
  """Inside, kernels of `ops.hopper.persistent` run so, on two processors."""
  monkeypatch.setattr(persistent, 'processors', lambda: 2)
  monkeypatch.setattr(persistent, '_CLUSTERS', False)
  with interpreted(detect_races=detect_races):
    yield
  if detect_races:
    assert_no_races()


def assert_no_races() -> None:
  """Of the kernel that ran last."""
  assert not gpu_callbacks.get_races().races_found
