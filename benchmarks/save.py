# SPDX-License-Identifier: Apache-2.0
"""How long a save stops training, beside gathering the state at rank 0.

    python -m benchmarks.save --processes=4                # CPU, two cores
    python -m benchmarks.save --processes=1 --full         # all GPUs, 8 layers

The state is that of training (float32 parameters, the optimizer divided over
the devices), filled with noise, which does not compress. `blocking_s` is how
long `save` keeps the training loop, `total_s` until the checkpoint is sealed.
The baseline does what most programs do first: every array is gathered at rank 0
and written there, one after another, while training waits. `copy_s` is what one
device needs to copy its share of the bytes to the host and do nothing else.
Flags of the trainer may follow. On disk are two checkpoints at most.
"""

import argparse
import json
import math
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks import record

_SMALL = [
  '--model.num_layers=2',
  '--model.d_model=512',
  '--model.d_expert=512',
  '--model.vocab_size=8192',
  '--model.num_experts=8',
]
_FULL = ['--flagfile=configs/zaya1_8b.flags', '--model.num_layers=8']


def worker(args) -> None:
  """One process of the run; process 0 prints the result as JSON."""
  from zaya_jax import config as config_lib
  from zaya_jax.runtime import processes, session

  place = [
    f'--distributed.coordinator={args.coordinator}',
    f'--distributed.processes={args.processes}',
    f'--distributed.process={args.process}',
  ]
  config = config_lib.Config.parse(
    [
      *(_FULL if args.full else _SMALL),
      f'--run_dir={args.folder}/run',
      '--checkpoint.keep=1',
      *(place if args.processes > 1 else []),
      *args.flags,
    ]
  )
  with session.join(config, 'same') as config:
    result = _measure(config, args)
    if processes.process() == 0:
      print(json.dumps(result), flush=True)


def _measure(config, args):
  import jax

  from zaya_jax.checkpoint import arrays
  from zaya_jax.checkpoint.reading import finder
  from zaya_jax.checkpoint.writing import manager
  from zaya_jax.parallel import mesh as mesh_lib
  from zaya_jax.runtime import processes

  mesh = mesh_lib.make_mesh(config.mesh)
  state = _noise(config, mesh)
  num_bytes = arrays.num_bytes(state)
  share = num_bytes / mesh.size
  copy_s = _copy(share)
  ours, baseline = [], []
  with manager.Manager(config.run_dir, config.checkpoint) as saved:
    for step in range(args.repeats + 1):
      jax.block_until_ready(state)
      processes.barrier('begin')
      started = time.monotonic()
      saved.save(step, state, data_index=0, meta={})
      blocking = time.monotonic() - started
      saved.wait()
      ours.append((blocking, time.monotonic() - started))
  verify_s = _seconds(finder.verify, saved.directory(args.repeats))
  peak = _peak_bytes()  # Before the baseline gathers.
  restore_s = _seconds(saved.restore, args.repeats, _abstract(state))
  processes.barrier('restored')
  if processes.process() == 0:
    shutil.rmtree(config.run_dir)  # The disk may be small.
  for _ in range(args.repeats):
    processes.barrier('begin')
    baseline.append(_seconds(_gather, state, args.folder))
  blocking, total = (statistics.median(x) for x in zip(*ours[1:], strict=True))
  gathered = statistics.median(baseline)
  return {
    'device': mesh.devices.flat[0].device_kind,
    'processes': args.processes,
    'devices': mesh.size,
    'state_bytes': num_bytes,
    'bytes_per_device': int(share),
    'copy_s': copy_s,
    'copy_gb_per_s': share / copy_s / 1e9,
    'first_blocking_s': ours[0][0],
    'blocking_s': blocking,
    'blocking_over_copy': blocking / copy_s,
    'total_s': total,
    'baseline_s': gathered,
    'baseline_over_blocking': gathered / blocking,
    'baseline_over_total': gathered / total,
    'verify_s': verify_s,
    'restore_s': restore_s,
    'peak_host_bytes': peak,
    'repeats': args.repeats,
  }


def _noise(config, mesh):
  """The training state, every array of it random."""
  import jax
  import numpy as np

  from zaya_jax.checkpoint import arrays
  from zaya_jax.train import state as state_lib

  with jax.set_mesh(mesh):
    abstract = arrays.on_mesh(jax.eval_shape(state_lib.make_init(config)), mesh)
  # Longer than what a compressor remembers, and made without compiling.
  noise = np.random.default_rng(0).random(1 << 24, np.float32)

  def fill(leaf):
    def part(index):
      shape = tuple(
        len(range(*place.indices(size)))
        for place, size in zip(index, leaf.shape, strict=True)
      )
      some = noise[: math.prod(shape)]
      return np.resize(some, shape).astype(leaf.dtype)

    return jax.make_array_from_callback(leaf.shape, leaf.sharding, part)

  return jax.block_until_ready(jax.tree.map(fill, abstract))


def _abstract(state):
  import jax

  return jax.tree.map(
    lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), state
  )


def _copy(num_bytes: float) -> float:
  """Seconds for each local device to copy so much to the host, all at once."""
  import jax
  import jax.numpy as jnp
  import numpy as np

  devices = jax.local_devices()
  kinds = {m.kind for m in devices[0].addressable_memories()}
  pinned = 'pinned_host' in kinds and devices[0].platform != 'cpu'
  best = float('inf')
  for i in range(4):
    data = [
      jax.device_put(jnp.full(int(num_bytes) // 4, i, jnp.float32), device)
      for device in devices
    ]
    jax.block_until_ready(data)
    started = time.monotonic()
    if pinned:
      where = [
        jax.sharding.SingleDeviceSharding(d, memory_kind='pinned_host')
        for d in devices
      ]
      jax.block_until_ready(
        [jax.device_put(x, w) for x, w in zip(data, where, strict=True)]
      )
    else:  # On a CPU the host's memory is the device's: a plain copy.
      for x in data:
        np.array(x)
    best = min(best, time.monotonic() - started)
  return best


def _gather(state, folder: str) -> None:
  """Gathers each array at process 0, which writes it; all wait."""
  import jax
  import numpy as np
  from jax.experimental import multihost_utils

  from zaya_jax.runtime import processes

  with open(os.path.join(folder, 'gathered'), 'wb') as file:
    for leaf in jax.tree.leaves(state):
      if processes.processes() > 1 and not leaf.is_fully_replicated:
        leaf = multihost_utils.process_allgather(leaf, tiled=True)
      if processes.process() == 0:
        np.save(file, np.asarray(leaf))
    file.flush()
    os.fsync(file.fileno())
  processes.barrier('written')


def _seconds(run, *args) -> float:
  started = time.monotonic()
  run(*args)
  return time.monotonic() - started


def _peak_bytes() -> int:
  status = pathlib.Path('/proc/self/status').read_text()
  return int(status.split('VmHWM:')[1].split()[0]) * 1024


def main() -> None:
  """Starts the processes and keeps what process 0 says."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--processes', type=int, default=4)
  parser.add_argument('--full', action='store_true', help='8 layers of 8B')
  parser.add_argument('--repeats', type=int, default=5)
  parser.add_argument('--folder', default='', help='where to write')
  parser.add_argument('--output', default='', help='JSON; empty: by name')
  parser.add_argument('--process', type=int, default=-1)
  parser.add_argument('--coordinator', default='')
  args, rest = parser.parse_known_args()
  args.flags = rest  # Of the trainer: --model.num_layers=4, say.
  if args.process >= 0:
    return worker(args)
  facts = record.circumstances(
    'benchmarks.save', ('jax', 'orbax-checkpoint', 'tensorstore')
  )
  folder = tempfile.mkdtemp(dir=args.folder or None)
  try:
    result = _start(args, folder)
  finally:
    shutil.rmtree(folder, ignore_errors=True)
  print(json.dumps(result, indent=2))
  kind = 'cpu' if result['device'] == 'cpu' else 'gpu'
  name = f'save_{kind}{result["devices"]}.json'
  path = pathlib.Path(args.output or record.RESULTS / name)
  record.write(path, {**facts, **result})


def _start(args, folder: str) -> dict:
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    port = free.getsockname()[1]
  command = [sys.executable, '-m', 'benchmarks.save', f'--folder={folder}']
  command += [f'--processes={args.processes}', f'--repeats={args.repeats}']
  command += [f'--coordinator=127.0.0.1:{port}', *['--full'][: args.full]]
  command += args.flags
  started = [
    subprocess.Popen(
      [*command, f'--process={i}'],
      stdout=subprocess.PIPE if i == 0 else subprocess.DEVNULL,
      text=True,
    )
    for i in range(args.processes)
  ]
  printed, _ = started[0].communicate()
  if any(process.wait() for process in started):
    raise SystemExit('a process has failed; what it said is above')
  return json.loads(printed.splitlines()[-1])


if __name__ == '__main__':
  main()
