# SPDX-License-Identifier: Apache-2.0
"""Writes safetensors files of which one tensor at a time is in memory.

Shapes and types are known before any value is read, so each file is its header
and then the tensors, one after another.
"""

import dataclasses
import json
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from zaya_jax.hub.tensors import weights

SHARD_BYTES = 5 * 10**9  # Above, there are several files and an index.

_NAMES = {dtype: name for name, dtype in weights.DTYPES.items()}


@dataclasses.dataclass(frozen=True)
class Tensor:
  """A tensor to write.

  Attributes:
    name: in the file.
    shape: of what `read` gives.
    dtype: of what is written.
    read: makes the values.
  """

  name: str
  shape: tuple[int, ...]
  dtype: np.dtype
  read: Callable[[], np.ndarray]

  @property
  def nbytes(self) -> int:
    """Bytes in the file."""
    return math.prod(self.shape) * self.dtype.itemsize


def write(folder: str, tensors: Sequence[Tensor], limit: int) -> list[str]:
  """Writes `model.safetensors`, or shards and their index.

  Args:
    folder: where.
    tensors: in an order in which they are quickly read.
    limit: bytes of tensors in one file; a larger tensor has its own.

  Returns:
    The names of the safetensors files.
  """
  shards = _split(tensors, limit)
  files = [weights.SINGLE]
  if len(shards) > 1:
    count = f'{len(shards):05}'
    files = [
      f'model-{i + 1:05}-of-{count}.safetensors' for i in range(len(shards))
    ]
    index = {
      'metadata': {'total_size': sum(t.nbytes for t in tensors)},
      'weight_map': {
        tensor.name: file
        for file, shard in zip(files, shards, strict=True)
        for tensor in shard
      },
    }
    with open(os.path.join(folder, weights.INDEX), 'w') as f:
      json.dump(index, f, indent=2, sort_keys=True)
  for file, shard in zip(files, shards, strict=True):
    write_file(os.path.join(folder, file), shard)
  return files


def _split(tensors: Sequence[Tensor], limit: int) -> list[list[Tensor]]:
  shards, room = [[]], limit
  for tensor in tensors:
    if shards[-1] and tensor.nbytes > room:
      shards.append([])
      room = limit
    shards[-1].append(tensor)
    room -= tensor.nbytes
  return shards


def write_file(path: str, tensors: Sequence[Tensor]) -> None:
  """Writes one safetensors file."""
  # Wide types first: every tensor is aligned, as torch wants it.
  tensors = sorted(tensors, key=lambda t: -t.dtype.itemsize)
  header: dict[str, Any] = {'__metadata__': {'format': 'pt'}}
  end = 0
  for tensor in tensors:
    header[tensor.name] = {
      'dtype': _NAMES[tensor.dtype],
      'shape': tensor.shape,
      'data_offsets': (end, end + tensor.nbytes),
    }
    end += tensor.nbytes
  text = json.dumps(header, separators=(',', ':')).encode()
  text += b' ' * (-len(text) % 8)
  with open(path, 'wb') as f:
    f.write(len(text).to_bytes(8, 'little') + text)
    for tensor in tensors:
      values = tensor.read().astype(tensor.dtype, order='C', copy=False)
      assert values.shape == tensor.shape, (tensor.name, values.shape)
      f.write(values.reshape(-1).view(np.uint8))
