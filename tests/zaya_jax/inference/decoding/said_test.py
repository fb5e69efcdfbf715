# SPDX-License-Identifier: Apache-2.0
"""Tests of what is said of slots between two steps."""

import numpy as np

from zaya_jax.inference.decoding import said as said_lib

_ENDS = {
  'tokens': 0,
  'left': 0,
  'temperature': 0.0,
  'top_p': 1.0,
  'seed': 0,
  'scored': False,
  'no_repeat': 0,
}


def test_changes_of_several_slots_are_one():
  said = said_lib.Said(4, 8)
  assert said.take() == {}
  said.put(1, None, **_ENDS | {'tokens': 7, 'left': 3, 'seed': 2**32 - 1})
  said.put(3, None, **_ENDS | {'tokens': 9, 'left': 5, 'top_p': 0.5})
  found = said.take()
  assert 'seen' not in found
  np.testing.assert_array_equal(found['changed'], [False, True, False, True])
  np.testing.assert_array_equal(found['tokens'], [0, 7, 0, 9])
  np.testing.assert_array_equal(found['left'], [0, 3, 0, 5])
  np.testing.assert_array_equal(found['top_p'], np.float32([0, 1, 0, 0.5]))
  assert found['seed'][1] == 2**32 - 1
  assert said.take() == {}


def test_the_last_word_on_a_slot_counts():
  said = said_lib.Said(2, 4)
  said.put(0, np.int32([5, 6]), **_ENDS | {'left': 3, 'no_repeat': 2})
  said.put(0, None, **_ENDS)
  found = said.take()
  assert not found['left'].any()
  assert 'seen' not in found


def test_tokens_that_may_not_repeat_are_told():
  said = said_lib.Said(2, 4)
  said.put(1, np.int32([5, 6]), **_ENDS | {'left': 3, 'no_repeat': 2})
  said.put(0, None, **_ENDS | {'left': 1})
  found = said.take()
  np.testing.assert_array_equal(found['seen'][1], [5, 6, -1, -1])
  np.testing.assert_array_equal(found['changed'], [True, True])
