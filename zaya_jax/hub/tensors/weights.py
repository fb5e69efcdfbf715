# SPDX-License-Identifier: Apache-2.0
"""Tensors of safetensors files, checked before a byte of them is believed.

Plain reads instead of a memory map: what is not asked for is never in memory.
Pickled weights run any program that they like when they are opened, and so
they never are.
"""

import dataclasses
import json
import math
import os
from typing import Any

import ml_dtypes
import numpy as np

from zaya_jax.hub.tensors import errors

SINGLE, INDEX = 'model.safetensors', 'model.safetensors.index.json'
_WIDE = {
  'F32': np.dtype(np.float32),
  'BF16': np.dtype(ml_dtypes.bfloat16),
  'F16': np.dtype(np.float16),
}
WIDE = frozenset(_WIDE.values())
# The others are of what is quantized (`hub.quantized`).
DTYPES = _WIDE | {
  'F8_E4M3': np.dtype(ml_dtypes.float8_e4m3fn),
  'F8_E8M0': np.dtype(ml_dtypes.float8_e8m0fnu),
  'I8': np.dtype(np.int8),
  'U8': np.dtype(np.uint8),
  'I32': np.dtype(np.int32),
  'I64': np.dtype(np.int64),
}
_LARGEST_HEADER = 100 * 2**20  # Bytes, as in the safetensors library.
_PICKLES = ('.bin', '.pt', '.pth', '.ckpt', '.pkl')


@dataclasses.dataclass(frozen=True)
class Tensor:
  """Where one tensor lies, and what it is."""

  name: str
  file: str
  start: int  # Of its bytes in the file.
  shape: tuple[int, ...]
  dtype: np.dtype

  def read(self, rows: slice = slice(None)) -> np.ndarray:
    """The tensor, or some rows of it, as stored.

    Raises:
      FolderError: if the file cannot be read to its end.
    """
    shape, skip = self.shape, 0
    if rows != slice(None):
      first, last, _ = rows.indices(shape[0])
      skip = first * math.prod(shape[1:]) * self.dtype.itemsize
      shape = (last - first, *shape[1:])
    out = np.empty(shape, self.dtype)
    target = memoryview(out.reshape(-1).view(np.uint8))
    try:
      with open(self.file, 'rb', buffering=0) as f:
        f.seek(self.start + skip)
        while target:
          if not (count := f.readinto(target)):
            raise EOFError('it ends too early')
          target = target[count:]
    except (OSError, EOFError) as error:
      raise errors.FolderError(
        f'{self.file} cannot be read: {error}.'
      ) from error
    return out


def find(folder: str) -> dict[str, Tensor]:
  """All tensors of a folder by name; only headers are read.

  Raises:
    FolderError: if a file is missing, damaged or outside of the folder, or the
      weights are pickled.
  """
  index = os.path.join(folder, INDEX)
  if os.path.exists(os.path.join(folder, SINGLE)):
    files, listed = [SINGLE], None
  elif os.path.exists(index):
    listed = read_json(index).get('weight_map')
    if not isinstance(listed, dict) or not all(
      isinstance(file, str) for file in listed.values()
    ):
      raise errors.FolderError(
        f'{index} has no "weight_map" of tensor names to file names; it is '
        'damaged.'
      )
    files = sorted(set(listed.values()))
  else:
    raise _no_weights(folder)
  found: dict[str, Tensor] = {}
  for file in files:
    for tensor in read_header(inside(folder, file)):
      if tensor.name in found:
        raise errors.FolderError(
          f'{folder} has tensor {tensor.name} twice, in '
          f'{os.path.basename(found[tensor.name].file)} and {file}.'
        )
      found[tensor.name] = tensor
  for name, file in (listed or {}).items():
    if name not in found or found[name].file != os.path.join(folder, file):
      raise errors.FolderError(
        f'{index} says that {file} holds tensor {name}, but it does not.'
      )
  return found


def read_header(file: str) -> list[Tensor]:
  """The tensors of one file, by their place in it.

  Raises:
    FolderError: if the header does not describe the bytes of the file exactly.
  """
  try:
    with open(file, 'rb') as f:
      size = os.fstat(f.fileno()).st_size
      length = int.from_bytes(f.read(8), 'little')
      if not 2 <= length <= min(_LARGEST_HEADER, size - 8):
        raise ValueError(
          f'its header claims {length:,} bytes, the file has {size:,}'
        )
      entries = json.loads(f.read(length), object_pairs_hook=_unique)
    return _parse(file, entries, 8 + length, size)
  except (OSError, ValueError, RecursionError) as error:
    raise errors.FolderError(
      f'{file} cannot be read: {error}; copy or download it again.'
    ) from error


def read_json(file: str) -> dict[str, Any]:
  """Reads one JSON object. Raises FolderError if it is none."""
  try:
    with open(file, encoding='utf-8') as f:
      found = json.load(f)
  except (OSError, ValueError, RecursionError) as error:
    raise errors.FolderError(f'{file} cannot be read: {error}.') from error
  if not isinstance(found, dict):
    raise errors.FolderError(f'{file} is not a JSON object.')
  return found


def inside(folder: str, name: str) -> str:
  """The path of a file, which must lie in the folder.

  Links count by where they lead. The cache of huggingface_hub links from
  snapshots/REVISION to blobs; that is one folder in this sense.

  Raises:
    FolderError: if it leads elsewhere, or there is no such file.
  """
  path, root = os.path.join(folder, name), os.path.realpath(folder)
  cache, kind = os.path.split(os.path.dirname(root))
  roots = [root] + [os.path.join(cache, 'blobs')] * (kind == 'snapshots')
  real = os.path.realpath(path)
  if os.path.basename(name) != name or os.path.dirname(real) not in roots:
    raise errors.FolderError(
      f'{folder} names {name!r} as one of its files, which leads out of the '
      'folder; it is not read.'
    )
  if not os.path.isfile(path):
    raise errors.FolderError(f'{path} is missing; copy or download it.')
  return path


def _parse(file: str, entries: Any, start: int, size: int) -> list[Tensor]:
  """Tensors that fill the bytes from `start` to `size` without a gap."""
  if not isinstance(entries, dict):
    raise ValueError('its header is not a JSON object')
  entries.pop('__metadata__', None)
  found, end = [], 0
  for name, entry in sorted(entries.items(), key=_begin):
    kind, shape = entry['dtype'], tuple(entry['shape'])
    first, last = entry['data_offsets']
    if kind not in DTYPES:
      raise ValueError(
        f'tensor {name} is of type {kind}, and only {", ".join(DTYPES)} are '
        'known'
      )
    if not all(type(x) is int and x >= 0 for x in (*shape, last)):
      raise ValueError(f'tensor {name} has shape {shape}, which is none')
    needed = math.prod(shape) * DTYPES[kind].itemsize
    if first != end or last - first != needed:
      raise ValueError(
        f'tensor {name} of shape {shape} and type {kind} is said to lie at '
        f'{first}..{last}, where {end}..{end + needed} is its place'
      )
    end = last
    found.append(Tensor(name, file, start + first, shape, DTYPES[kind]))
  if start + end != size:
    raise ValueError(
      f'its tensors end at byte {start + end:,}, the file at {size:,}'
    )
  return found


def _begin(item: tuple[str, Any]) -> tuple[int, int]:
  """Where a tensor begins and ends: the order in the file."""
  name, entry = item
  try:
    first, last = entry['data_offsets']
    kinds = [type(x) for x in (first, last, entry['dtype'], entry['shape'])]
    if kinds == [int, int, str, list]:
      return first, last
  except (TypeError, ValueError, KeyError, AttributeError):
    pass
  raise ValueError(f'the entry of tensor {name} is not dtype, shape, offsets')


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  found = dict(pairs)
  if len(found) != len(pairs):
    raise ValueError('a name occurs twice in its header')
  return found


def _no_weights(folder: str) -> errors.FolderError:
  names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
  pickles = [name for name in names if name.endswith(_PICKLES)]
  if pickles:
    return errors.FolderError(
      f'{folder} has only pickled weights ({pickles[0]}), which can run any '
      'program when they are opened and so are not; convert them to '
      'safetensors.'
    )
  return errors.FolderError(f'{folder} has neither {SINGLE} nor {INDEX}.')
