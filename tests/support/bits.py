# SPDX-License-Identifier: Apache-2.0
"""The tensors of a folder, by the library that others read them with."""

import pathlib

import numpy as np
import safetensors.numpy


def read(folder: pathlib.Path) -> dict[str, np.ndarray]:
  """Every tensor of a folder, by name."""
  found = {}
  for file in sorted(folder.glob('*.safetensors')):
    with safetensors.safe_open(file, framework='numpy') as f:
      assert f.metadata() == {'format': 'pt'}
    part = safetensors.numpy.load_file(file)
    assert not found.keys() & part.keys()
    found |= part
  return found


def assert_same(
  found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]
) -> None:
  """Names, types, shapes and values are the same."""
  assert found.keys() == wanted.keys()
  for name, value in wanted.items():
    assert found[name].dtype == value.dtype, name
    assert found[name].shape == value.shape, name
    assert found[name].tobytes() == value.tobytes(), name
