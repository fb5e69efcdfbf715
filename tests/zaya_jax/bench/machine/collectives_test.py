# SPDX-License-Identifier: Apache-2.0
"""Collectives on eight virtual devices: values, bandwidths, programs."""

import dataclasses

import jax
import numpy as np
import pytest

from tests.support.collectives import SIZE, N, in_numpy, sent
from zaya_jax import config as config_lib
from zaya_jax.bench.machine import collectives, kinds
from zaya_jax.bench.sweep import frame as frame_lib
from zaya_jax.plan.compile import hlo

HERE = [name for name in kinds.KINDS if name != 'broadcast']


@pytest.fixture(scope='module')
def group():
  return collectives.Group(jax.devices()[:N])


@pytest.mark.parametrize('name', HERE)
def test_program_gives_the_result_of_numpy_after_any_number_of_calls(
  group, name
):
  kind = dataclasses.replace(kinds.KINDS[name], in_place=False)
  x = sent(name)
  compiled, received = group.compile(kind, x.shape[1], 3)
  wanted = in_numpy(name, x)
  assert received == wanted.shape[1]
  place = jax.sharding.NamedSharding(group.mesh, jax.P('d'))
  y = jax.device_put(np.zeros((N, received), np.float32), place)
  found = compiled(jax.device_put(x, place), y)
  np.testing.assert_array_equal(found, wanted)
  assert y.is_deleted()  # Its memory is that of the result.


def test_all_reduce_in_place_sums_its_results(group):
  kind, x = kinds.KINDS['all-reduce'], sent('all-reduce')
  assert kind.in_place
  compiled, _ = group.compile(kind, x.shape[1], 3)
  place = jax.sharding.NamedSharding(group.mesh, jax.P('d'))
  x, y = (jax.device_put(array, place) for array in (0 * x, x))
  wanted = N**2 * in_numpy('all-reduce', np.asarray(y))
  np.testing.assert_array_equal(compiled(x, y), wanted)


@pytest.mark.parametrize('name', HERE)
def test_no_call_is_left_out(group, name):
  """One collective in the body of a loop of known length, none outside."""
  kind = kinds.KINDS[name]
  compiled, _ = group.compile(kind, kind.sends(SIZE // 4, N), 7)
  [message] = hlo.read(compiled.as_text())['messages']
  wanted = {'permute': 'collective-permute'}.get(name, name)
  assert (message['kind'], message['loops']) == (wanted, (7,))


@pytest.mark.parametrize('name', HERE)
def test_measured_result_is_checked(group, name):
  found = group.measure(name, SIZE, None, repeats=1)
  assert found.low <= found.seconds <= found.high


BROKEN = {
  'all-reduce': lambda x, n: jax.lax.psum(
    x.at[3].add(jax.lax.axis_index('d') == 2), 'd'
  ),
  'reduce-scatter': lambda x, n: jax.lax.psum_scatter(x[::-1], 'd', tiled=True),
  'all-gather': lambda x, n: jax.lax.all_gather(x, 'd', tiled=True)[::-1],
  'all-to-all': lambda x, n: x,
  'permute': lambda x, n: jax.lax.ppermute(
    x, 'd', [(d, (d - 1) % n) for d in range(n)]
  ),
}


@pytest.mark.parametrize('name', HERE)
def test_wrong_result_is_noticed(group, name, monkeypatch):
  broken = dataclasses.replace(kinds.KINDS[name], call=BROKEN[name])
  monkeypatch.setitem(kinds.KINDS, name, broken)
  with pytest.raises(frame_lib.WrongError, match=f'{name} of {SIZE} bytes'):
    group.measure(name, SIZE, None, repeats=1)


@pytest.mark.parametrize(
  'devices, counts',
  [(2, [2]), (4, [4, 2]), (6, [6, 2, 4]), (8, [8, 2, 4, 7]), (3, [3, 2])],
)
def test_counts_are_all_powers_and_all_but_one(devices, counts):
  assert collectives.counts(devices) == counts


def test_sizes_divide_by_devices_and_elements():
  group = collectives.Group(jax.devices()[:7])
  assert group.exact(1024) == 1036 and group.exact(1) == 28


def test_sizes_end_where_memory_does():
  assert collectives.sizes(2**30, memory=2**22)[-1] == 2**20
  assert collectives.sizes(2**16, memory=2**40) == [2**10, 2**12, 2**14, 2**16]


def test_run_measures_each_collective_on_each_number(monkeypatch):
  monkeypatch.setattr(
    collectives.Group,
    'measure',
    lambda self, name, size, expected_s, repeats: frame_lib.clock.Timed(
      low=1.0, seconds=1.0, high=1.0, samples=1, calls=1
    ),
  )
  frame = frame_lib.Frame(minutes=10, repeats=1, cases=('permute', 'broadcast'))
  bench = config_lib.BenchConfig(max_bytes=2**12)
  collectives.run(frame, config_lib.Config(mode='bench', bench=bench))
  assert {(p.case, p.devices) for p in frame.points} == {
    ('permute', n) for n in (2, 4, 7, 8)
  }
  assert frame.notes == ['broadcast: JAX has none for CPUs.']


def test_one_device_is_too_few(monkeypatch):
  monkeypatch.setattr(jax, 'devices', lambda: [object()])
  frame = frame_lib.Frame(minutes=1, repeats=1)
  config = lambda op: config_lib.Config(
    mode='bench', bench=config_lib.BenchConfig(op=(op,))
  )
  with pytest.raises(config_lib.UsageError, match='needs two devices'):
    collectives.run(frame, config('collectives'))
  collectives.run(frame, config('machine'))  # There is more to measure.
  assert frame.notes == ['There is one device, and so no collective.']
