# SPDX-License-Identifier: Apache-2.0
"""Hashes see every bit of the content and nothing of its placement."""

import dataclasses
import hashlib

import jax.numpy as jnp
import numpy as np

from tests.support import hashes
from zaya_jax.checkpoint.actions import hashing


def test_hashes_do_not_depend_on_number_of_devices(make_state):
  one, eight = make_state(3, shards=1), make_state(3, shards=8)
  assert len(eight.params['blocks']['w'].sharding.device_set) == 8
  assert hashes.state_hash(one) == hashes.state_hash(eight)
  assert hashes.params_hash(one) == hashes.params_hash(eight)


def test_hash_is_that_of_the_definition():
  """That it never changes: other people compare what they wrote down."""
  w = np.arange(3, dtype=np.float32)
  sha = lambda text: hashlib.sha256(text).hexdigest()
  whole = {
    'params/w': sha(b'params/w float32 (3,)\n' + w.tobytes()),
    'step': sha(b'step int32 ()\n' + b'\x07\0\0\0'),
  }
  lines = [f'{path} {x}\n'.encode() for path, x in whole.items()]
  state = {'step': np.int32(7), 'params': {'w': w}}
  assert hashes.params_hash(state) == sha(lines[0])
  assert hashes.state_hash(state) == sha(b''.join(lines))
  assert hashing.state_hash({'b': 'x', 'a': 'y'}) == sha(b'a y\nb x\n')


def test_one_bit_of_any_leaf_changes_state_hash():
  state = {'params': {'w': np.zeros(9, np.float32)}, 'step': np.int32(0)}
  before = hashes.state_hash(state)
  for bit in (0, 17, 31):
    flipped = np.zeros(9, np.float32)
    flipped.view(np.uint32)[4] = 1 << bit
    changed = {'params': {'w': flipped}, 'step': np.int32(0)}
    assert hashes.state_hash(changed) != before
  assert hashes.state_hash({**state, 'step': np.int32(1)}) != before


def test_params_hash_sees_parameters_alone(make_state):
  state = make_state()
  later = dataclasses.replace(state, step=jnp.int32(9))
  assert hashes.params_hash(later) == hashes.params_hash(state)
  assert hashes.state_hash(later) != hashes.state_hash(state)
  params = {**state.params, 'scale': state.params['scale'] * 2}
  other = dataclasses.replace(state, params=params)
  assert hashes.params_hash(other) != hashes.params_hash(state)


def test_name_type_and_shape_count_as_content():
  zeros = np.zeros((2, 2), np.float32)
  variants = (
    {'params': {'a': zeros}},
    {'params': {'b': zeros}},
    {'params': {'a': zeros.reshape(4)}},
    {'params': {'a': zeros.view(np.int32)}},
  )
  assert len({hashes.params_hash(v) for v in variants}) == len(variants)
