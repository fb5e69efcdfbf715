# SPDX-License-Identifier: Apache-2.0
"""Fingerprints: one value on every mesh, another for every change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from zaya_jax.checkpoint import fingerprint


def expected(array):
  """The definition, element by element, in Python's integers."""

  def mix(h):
    h = (h ^ h >> 16) * 0x85EBCA6B % 2**32
    h = (h ^ h >> 13) * 0xC2B2AE35 % 2**32
    return h ^ h >> 16

  size = array.dtype.itemsize
  sums = [0, 0]
  for index in range(array.size):
    raw = array.reshape(-1)[index : index + 1].tobytes()
    bits = int.from_bytes(raw[:4], 'little')
    if size == 8:
      high = int.from_bytes(raw[4:], 'little')
      bits ^= mix((high + 0x85EBCA6B) % 2**32)
    first = mix(bits ^ mix((index + 0x9E3779B9) % 2**32))
    sums[0] += first
    sums[1] += mix((first + 0x7F4A7C15) % 2**32)
  return ''.join(f'{s % 2**32:08x}' for s in sums)


def values(dtype, seed=0):
  noise = np.random.default_rng(seed).integers(-100, 100, (8, 4, 2))
  return np.asarray(jnp.asarray(noise).astype(dtype))


def of(x):
  return fingerprint.to_json(fingerprint.of_tree({'x': x}))['x']


@pytest.fixture(params=['small', 'host', 'devices'])
def where(request, monkeypatch):
  """NumPy, XLA on the host, and XLA where the parts lie."""
  if request.param != 'small':
    monkeypatch.setattr(fingerprint, '_SMALL', 0)
  if request.param == 'devices':
    monkeypatch.setattr(fingerprint, '_HOST', 'none')


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'int32', 'uint8'])
@pytest.mark.parametrize(
  'spec', [None, P(), P('a'), P(None, 'b'), P('b', 'a'), P(('a', 'b')), P('b')]
)
def test_every_sharding_gives_what_the_definition_says(where, dtype, spec):
  x = values(dtype)
  placed = jnp.asarray(x)
  if spec is not None:
    mesh = jax.make_mesh((4, 2), ('a', 'b'))
    placed = jax.device_put(x, NamedSharding(mesh, spec))
  assert of(placed) == expected(x)


@pytest.mark.parametrize('dtype', ['int64', 'float64'])
@pytest.mark.parametrize('spec', [P(), P('a', None, 'b')])
def test_both_words_of_eight_bytes_count(where, dtype, spec):
  x = np.random.default_rng(0).integers(-(2**62), 2**62, (8, 4, 2))
  x = x.astype(dtype)
  with jax.enable_x64(True):
    mesh = jax.make_mesh((4, 2), ('a', 'b'))
    assert of(jax.device_put(x, NamedSharding(mesh, spec))) == expected(x)


def test_scalars_and_parts_in_host_memory(where):
  assert of(jnp.int32(7)) == expected(np.array([7], np.int32))
  x = values('float32')
  parts = [((4, 0, 0), x[4:]), ((0, 0, 0), x[:4])]
  assert fingerprint.of_host(parts, x.shape) == expected(x)


def test_every_flipped_bit_and_every_exchange_is_seen():
  x = values('float32')
  found = {of(jnp.asarray(x)), of(jnp.asarray(x[::-1])), of(jnp.asarray(-x))}
  x = x[[1, 0, *range(2, 8)]]
  found.add(of(jnp.asarray(x)))
  raw = x.view(np.uint32).reshape(-1)
  for bit in range(0, 32 * raw.size, 7):
    raw[bit // 32] ^= np.uint32(1 << bit % 32)
    found.add(of(jnp.asarray(x)))
    raw[bit // 32] ^= np.uint32(1 << bit % 32)
  assert len(found) == 4 + len(range(0, 32 * raw.size, 7))


def test_differences_are_named():
  saved, found = {'a': '1', 'b': '2'}, {'a': '1', 'b': '3', 'c': '4'}
  assert fingerprint.differences(saved, found) == ['b', 'c']
  assert fingerprint.differences(saved, saved) == []
