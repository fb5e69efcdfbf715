# SPDX-License-Identifier: Apache-2.0
"""The library of emulated HIP kernels, for the tests that ask for it."""

import pytest

from ops import native
from tests.ops.native import build


@pytest.fixture
def emulated(monkeypatch):
  """Kernels are those of ops/native as they are."""
  if reason := build.missing('c++'):
    pytest.skip(reason)
  path = build.build('cpu') / 'libzaya_ops.so'
  monkeypatch.setenv('ZAYA_OPS_LIBRARY', str(path))
  return native
