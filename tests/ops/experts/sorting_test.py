# SPDX-License-Identifier: Apache-2.0
"""The order of tokens by expert, and the tiles that it falls into."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ops.experts import sorting
from tests.support.ops.experts_inputs import CASES

ROWS = 16
# Tokens of each expert, then of the class without one.
SPLITS = {
  'uneven': (5, 40, 16, 0, 17, 3),
  'full_tiles': (16, 32, 0, 48, 0),
  'partial_tiles_everywhere': (17,) * 6,
  'one_each': (1,) * 9,
  'all_to_the_first': (70, 0, 0),
  'all_to_the_last': (0, 0, 70, 0),
  'all_skipped': (0, 0, 0, 70),
  'one_token': (0, 1, 0),
}


def starts_of(split):
  return jnp.asarray(np.cumsum((0, *split[:-1])), jnp.int32)


@pytest.fixture(params=CASES)
def case(request):
  return CASES[request.param]


def test_sort_is_stable_and_counts_the_experts_only(case):
  choice, num_experts = case
  order, inverse, starts = sorting.sort_by_expert(
    jnp.asarray(choice, jnp.int32), num_experts
  )
  np.testing.assert_array_equal(order, np.argsort(choice, kind='stable'))
  np.testing.assert_array_equal(np.asarray(order)[inverse], range(len(choice)))
  counts = np.bincount(choice, minlength=num_experts + 1)[:num_experts]
  np.testing.assert_array_equal(starts, [0, *np.cumsum(counts)])


@pytest.mark.parametrize('name', SPLITS)
def test_each_row_has_one_program_of_its_expert(name):
  split = SPLITS[name]
  found = jax.jit(sorting.tiles, static_argnums=(1, 2))(
    starts_of(split), sum(split), ROWS
  )
  experts = []
  for expert, first, end in zip(*map(np.asarray, found), strict=True):
    experts += [(r, expert) for r in range(first, min(first + ROWS, end))]
  wanted = np.repeat(np.arange(len(split)), split)
  assert sorted(experts) == list(enumerate(wanted))


def test_the_list_has_no_more_room_than_the_worst_split_needs():
  split = SPLITS['partial_tiles_everywhere']
  found = sorting.tiles(starts_of(split), sum(split), ROWS)
  assert (found.first_P < found.end_P).sum() == found.first_P.size == 12
