# SPDX-License-Identifier: Apache-2.0
"""Hashes see every bit of the content and nothing of its placement."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from zaya_jax.checkpoint.actions import hashing


def test_hashes_do_not_depend_on_number_of_devices(make_state):
  one, eight = make_state(3, shards=1), make_state(3, shards=8)
  assert len(eight.params['blocks']['w'].sharding.device_set) == 8
  assert hashing.state_hash(one) == hashing.state_hash(eight)
  assert hashing.params_hash(one) == hashing.params_hash(eight)


def test_one_bit_of_any_leaf_changes_state_hash():
  state = {'params': {'w': np.zeros(9, np.float32)}, 'step': np.int32(0)}
  before = hashing.state_hash(state)
  for bit in (0, 17, 31):
    flipped = np.zeros(9, np.float32)
    flipped.view(np.uint32)[4] = 1 << bit
    changed = {'params': {'w': flipped}, 'step': np.int32(0)}
    assert hashing.state_hash(changed) != before
  assert hashing.state_hash({**state, 'step': np.int32(1)}) != before


def test_params_hash_sees_parameters_alone(make_state):
  state = make_state()
  later = dataclasses.replace(state, step=jnp.int32(9))
  assert hashing.params_hash(later) == hashing.params_hash(state)
  assert hashing.state_hash(later) != hashing.state_hash(state)
  params = {**state.params, 'scale': state.params['scale'] * 2}
  other = dataclasses.replace(state, params=params)
  assert hashing.params_hash(other) != hashing.params_hash(state)


def test_name_type_and_shape_count_as_content():
  zeros = np.zeros((2, 2), np.float32)
  variants = (
    {'params': {'a': zeros}},
    {'params': {'b': zeros}},
    {'params': {'a': zeros.reshape(4)}},
    {'params': {'a': zeros.view(np.int32)}},
  )
  assert len({hashing.params_hash(v) for v in variants}) == len(variants)
