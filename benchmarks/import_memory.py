# SPDX-License-Identifier: Apache-2.0
"""Peak memory of --mode=import on a checkpoint of the published size.

  python -m benchmarks.import_memory --folder=/tmp

Writes a synthetic folder of ZAYA1-8B (8.84B parameters in bfloat16, 17.7 GB in
shards) and imports it in a process of its own, whose peak is what the kernel
says of it. Needs twice that on disk, or takes the most layers that fit and says
so; removes both at the end.
"""

import argparse
import dataclasses
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import jax
import ml_dtypes
import numpy as np

from benchmarks import record
from zaya_jax import config as config_lib
from zaya_jax.hub import config as hub_config
from zaya_jax.hub import names as hub_names
from zaya_jax.model import zaya

_SHARD = 5 * 10**9  # Bytes of a file, as transformers writes them.
_BF16 = np.dtype(ml_dtypes.bfloat16)


def main() -> None:
  """Measures and writes benchmarks/results/import_memory.json."""
  parser = argparse.ArgumentParser()
  parser.add_argument('--folder', type=pathlib.Path)
  parser.add_argument('--layout', default='native')
  parser.add_argument('--layers', type=int, default=40)
  parser.add_argument(
    '--output', type=pathlib.Path, default=record.RESULTS / 'import_memory.json'
  )
  args = parser.parse_args()
  about = record.circumstances(
    'benchmarks.import_memory', ('jax', 'orbax-checkpoint', 'tensorstore')
  )
  config = config_lib.Config.from_flagfile('configs/zaya1_8b.flags')
  with tempfile.TemporaryDirectory(dir=args.folder) as folder:
    free = shutil.disk_usage(folder).free
    result = measure(
      pathlib.Path(folder), config, args.layout, args.layers, free
    )
  print(json.dumps(result, indent=2))
  record.write(args.output, {**about, **result})


def measure(
  folder: pathlib.Path,
  config: config_lib.Config,
  layout: hub_names.Layout,
  layers: int,
  free: int,
) -> dict[str, Any]:
  """Writes a model into `folder`, imports it and tells what that took.

  Args:
    folder: empty.
    config: its model, but for the number of layers.
    layout: of the model.
    layers: how many are wanted.
    free: bytes; fewer layers are taken where they do not fit twice.
  """
  while layers > 1 and 2.2 * sum(_sizes(config, layout, layers)) > free:
    layers -= 1
  sizes = list(_sizes(config, layout, layers))
  source, run = folder / 'model', folder / 'run'
  write(source, config, layout, layers)
  command = [
    *(sys.executable, '-m', 'zaya_jax.main', '--mode=import'),
    *(f'--source={source}', f'--output={run}'),
  ]
  started = time.monotonic()
  process = subprocess.Popen(
    command, cwd=record.ROOT, env={**os.environ, 'JAX_PLATFORMS': 'cpu'}
  )
  peak = 0
  while process.poll() is None:
    peak = max(peak, _high_water(process.pid))
    time.sleep(0.01)
  seconds = time.monotonic() - started
  if process.returncode:
    raise RuntimeError(f'{command} failed with {process.returncode}.')
  limit = 2 * max(sizes) + 2**30
  return {
    'layout': layout,
    'layers': layers,
    'tensors': len(sizes),
    'bytes': sum(sizes),
    'largest_tensor_bytes': max(sizes),
    'peak_bytes': peak,
    'limit_bytes': limit,
    'within_limit': peak <= limit,
    'seconds': seconds,
    'bytes_written': sum(
      f.stat().st_size for f in run.rglob('*') if f.is_file()
    ),
  }


def _high_water(pid: int) -> int:
  """The peak resident memory of a process so far, in bytes.

  Not `ru_maxrss`: that begins with what the process held that started it.
  """
  try:
    text = pathlib.Path(f'/proc/{pid}/status').read_text()
  except (FileNotFoundError, ProcessLookupError):
    return 0
  found = re.search(r'VmHWM:\s*(\d+) kB', text)  # A zombie has none.
  return int(found[1]) * 1024 if found else 0


def write(
  folder: pathlib.Path,
  config: config_lib.Config,
  layout: hub_names.Layout,
  layers: int,
) -> None:
  """Writes a synthetic model in shards: the same random block repeated."""
  folder.mkdir()
  model = _model(config, layers)
  settings = hub_config.to_hf(model, layout)
  (folder / 'config.json').write_text(json.dumps(settings))
  rng = np.random.default_rng(0)
  block = memoryview(
    (0.02 * rng.standard_normal(2**23, np.float32)).astype(_BF16).view(np.uint8)
  )
  shards: list[list[tuple[str, tuple[int, ...]]]] = [[]]
  filled = 0
  for name, shape in _tensors(config, layout, layers):
    size = 2 * math.prod(shape)
    if filled and filled + size > _SHARD:
      shards.append([])
      filled = 0
    shards[-1].append((name, shape))
    filled += size
  weight_map = {}
  for i, shard in enumerate(shards):
    file = f'model-{i + 1:05}-of-{len(shards):05}.safetensors'
    weight_map |= {name: file for name, _ in shard}
    header, end = {}, 0
    for name, shape in shard:
      start, end = end, end + 2 * math.prod(shape)
      header[name] = {
        'dtype': 'BF16',
        'shape': shape,
        'data_offsets': (start, end),
      }
    text = json.dumps(header).encode()
    with (folder / file).open('wb') as f:
      f.write(len(text).to_bytes(8, 'little') + text)
      for at in range(0, end, len(block)):
        f.write(block[: end - at])
  index = {'weight_map': weight_map}
  (folder / 'model.safetensors.index.json').write_text(json.dumps(index))


def _model(config: config_lib.Config, layers: int) -> config_lib.ModelConfig:
  return dataclasses.replace(config.model, num_layers=layers)


def _tensors(
  config: config_lib.Config, layout: hub_names.Layout, layers: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
  """Names and shapes of the tensors of a model."""
  model = _model(config, layers)
  trees = jax.eval_shape(lambda: zaya.init(model, jax.random.key(0)))
  for rows, tree in zip(
    (hub_names.PARAMS, hub_names.BUFFERS), trees, strict=True
  ):
    leaves = hub_names.flatten(tree)
    for row in rows:
      if row.path in leaves:
        shape = leaves[row.path].shape
        for name, index in row.tensors(layout, shape):
          yield name, row.shape_of(index, shape)


def _sizes(config, layout, layers) -> Iterator[int]:
  for _, shape in _tensors(config, layout, layers):
    yield 2 * math.prod(shape)


if __name__ == '__main__':
  main()
