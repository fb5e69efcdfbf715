# SPDX-License-Identifier: Apache-2.0
"""Three pretend hosts that lose copies; and the states that they copy."""

import pathlib
import shutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from zaya_jax import config as config_lib
from zaya_jax.checkpoint.writing import fast
from zaya_jax.parallel import mesh as mesh_lib
from zaya_jax.runtime import processes as processes_lib
from zaya_jax.runtime import session

RNG = np.random.default_rng(0)
HOSTS = 3
META = {'tokens': 7}
# Shape, type and place: copies on all devices, parts, indivisible, a count.
SPECS = {
  'params': ((16, 3), 'float32', P()),
  'fsdp': ((4, 8), 'float32', P(None, 'fsdp')),
  'moments': ((24, 2), 'float32', P(('fsdp', 'replica'))),
  'half': ((5,), 'bfloat16', P()),
  'count': ((), 'int32', P()),
}


def make_mesh(**sizes):
  return mesh_lib.make_mesh(config_lib.MeshConfig(**sizes))


def make_state(mesh, seed=0):
  """The same values in all processes, placed as SPECS say."""
  rng, state = np.random.default_rng(seed), {}
  for name, (shape, dtype, spec) in SPECS.items():
    value = np.asarray(9 * rng.normal(size=shape)).astype(jnp.dtype(dtype))
    state[name] = jax.make_array_from_callback(
      shape, NamedSharding(mesh, spec), lambda place, value=value: value[place]
    )
  return state


def assert_same(found, expected):
  assert found.keys() == expected.keys()
  for name, array in expected.items():
    assert found[name].sharding == array.sharding
    for a, b in zip(
      found[name].addressable_shards, array.addressable_shards, strict=True
    ):
      np.testing.assert_array_equal(np.asarray(a.data), np.asarray(b.data))


def flip(path):
  """Flips a bit of a file."""
  data = bytearray(path.read_bytes())
  data[RNG.integers(len(data))] ^= 1 << int(RNG.integers(8))
  path.write_bytes(data)


class Host:
  """One process, which shares no folder with the others."""

  def __init__(self, base: pathlib.Path, process: int):
    self.base, self.process = base, process
    self.mesh = make_mesh(replica=HOSTS, fsdp=2)
    self.folder = base / f'host{process}'

  def open(self):
    tiers = (f'{self.base}/host{{process}}/{t}' for t in ('memory@1', 'disk@2'))
    config = config_lib.CheckpointConfig(fast=tuple(tiers))
    run_dir = str(self.base / 'run')
    return fast.FastTier(run_dir, config, self.mesh, make_state(self.mesh))

  def save(self, *steps):
    tier = self.open()
    for step in steps:
      state = make_state(self.mesh, step)
      tier.save(step, state, data_index=8 * step, meta=META)
    tier.wait()
    processes_lib.barrier('saved')

  def names(self):
    return sorted(path.name for path in self.folder.glob('memory/*/*/*'))

  def lose(self, *processes):
    if self.process in processes:
      shutil.rmtree(self.folder)
    processes_lib.barrier('lost')

  def flip(self, process, name):
    if self.process == process:
      (part,) = self.folder.glob(f'{name}/part')
      flip(part)
    processes_lib.barrier('flipped')

  def check(self, step, words):
    found = self.open().restore()
    assert found.step == step and words in found.where, found.where
    assert found.meta['data_index'] == 8 * step
    assert_same(found.state, make_state(self.mesh, step))
    processes_lib.barrier('checked')


def scenario(host: Host) -> None:
  """What happens to the hosts, one after another."""
  host.save(1, 2, 3)
  before = (host.process - 1) % HOSTS
  assert host.names() == sorted(
    f'{step}.{owner}' for step in (2, 3) for owner in (host.process, before)
  )
  host.check(3, 'memory')
  # A host has lost its memory and its disk: its neighbour has its part.
  host.lose(1)
  host.check(3, '1 of 3 parts of it from neighbours')
  # And a bit has flipped in the neighbour's memory: its disk has it too.
  host.save(4)
  host.lose(1)
  host.flip(2, 'memory/*/*/4.1')
  host.check(4, 'disk')
  # There as well: the state before.
  host.flip(2, 'disk/*/*/4.1')
  host.check(3, 'memory')
  # Two neighbours at once: nobody has the part of the first.
  host.save(5)
  host.lose(1, 2)
  assert host.open().restore() is None
  processes_lib.barrier('nothing')
  # Hosts have changed their places: each part is at a stranger's.
  host.save(6)
  if host.process == 0:
    for a, b in ((2, 9), (1, 2), (0, 1), (9, 0)):
      (host.base / f'host{a}').rename(host.base / f'host{b}')
  processes_lib.barrier('moved')
  host.check(6, '3 of 3 parts')


def main() -> None:
  """Runs one of the processes."""
  base, port, process = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
  place = config_lib.DistributedConfig(
    coordinator=f'127.0.0.1:{port}', processes=HOSTS, process=int(process)
  )
  config = config_lib.Config(distributed=place, run_dir=str(base / 'log'))
  with session.join(config, ''):
    scenario(Host(base, int(process)))
    print('all is well')


if __name__ == '__main__':
  main()
