# SPDX-License-Identifier: Apache-2.0
"""What tests of the products share."""

import pathlib

import pytest

from tests.support.ops import native_build as build


@pytest.fixture(params=[32, 16])
def products(request, monkeypatch):
  """Kernels are emulated, with matrix instructions of either edge."""
  if reason := build.missing('c++'):
    pytest.skip(reason)
  made = build.build('cpu', edge=request.param)
  monkeypatch.setenv('ZAYA_OPS_LIBRARY', str(made / 'libzaya_ops.so'))
  return request.param


@pytest.fixture
def tile_probe(monkeypatch):
  """Builds tile_probe.hip for a CPU, headers as they are or patched."""
  if reason := build.missing('c++'):
    pytest.skip(reason)

  def use(*patches):
    source = pathlib.Path(__file__).with_name('tile_probe.hip')
    made = build.build('cpu', *patches, kernels=('tile_probe',), more=(source,))
    monkeypatch.setenv('ZAYA_OPS_LIBRARY', str(made / 'libzaya_ops.so'))

  return use
