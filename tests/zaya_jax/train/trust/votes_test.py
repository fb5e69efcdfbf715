# SPDX-License-Identifier: Apache-2.0
"""Votes: a bit that flips in one device's copy, found and laid at its door."""

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.support import flips
from zaya_jax import config as config_lib
from zaya_jax.parallel import mesh as mesh_lib
from zaya_jax.train.trust import votes

RNG = np.random.default_rng(0)
TRIALS = 50


def make(mesh):
  """Arrays of several kinds: copies of all, of parts, and none at all."""
  specs = {
    'whole': (P(), np.float32, (3, 5)),
    'half': (P(None, 'fsdp'), np.float32, (3, 4)),
    'bfloat16': (P(), jax.numpy.bfloat16, (7,)),
    'count': (P(), np.int32, ()),
    'zero1': (P(('fsdp', 'replica', 'expert')), np.float32, (48, 2)),
  }
  return {
    name: jax.device_put(
      RNG.normal(size=shape).astype(dtype) * 9, NamedSharding(mesh, spec)
    )
    for name, (spec, dtype, shape) in specs.items()
  }


@pytest.fixture(scope='module', params=[(8, 1, 1), (4, 2, 1), (3, 2, 1)])
def setting(request):
  """Sizes of a mesh, arrays on it, and their vote."""
  sizes = dict(zip(('replica', 'fsdp', 'expert'), request.param, strict=True))
  mesh = mesh_lib.make_mesh(config_lib.MeshConfig(**sizes))
  state = make(mesh)
  return mesh, state, votes.Vote(mesh, state)


def test_all_agree_and_what_has_no_copy_takes_no_part(setting):
  _, state, vote = setting
  assert vote.count(vote.start(state)) == []
  assert set(vote.leaves) == set(state) - {'zero1'}


def test_each_flipped_bit_names_its_device(setting):
  mesh, state, vote = setting
  names = list(vote.leaves)
  for _ in range(TRIALS):
    name, place = names[RNG.integers(len(names))], int(RNG.integers(mesh.size))
    bad = state | {name: flips.flip(state[name], place, RNG)}
    assert vote.count(vote.start(bad)) == [
      votes.Dissent((place,), (name,), majority=True)
    ]


def test_two_copies_have_no_majority():
  mesh = mesh_lib.make_mesh(config_lib.MeshConfig(replica=2))
  state = make(mesh)
  vote = votes.Vote(mesh, state)
  bad = state | {'whole': flips.flip(state['whole'], 1, RNG)}
  assert vote.count(vote.start(bad)) == [
    votes.Dissent((0, 1), ('whole',), majority=False)
  ]


def test_two_wrong_devices_are_both_found(setting):
  mesh, state, vote = setting
  bad = state['whole']
  for place in (1, 4):
    bad = flips.flip(bad, place, RNG)
  (found,) = vote.count(vote.start(state | {'whole': bad}))
  assert found.devices == (1, 4) and found.majority


def test_bit_of_an_array_without_copies_is_not_seen(setting):
  # What the vote is not for: see the docstring of the module.
  _, state, vote = setting
  bad = state | {'zero1': flips.flip(state['zero1'], 2, RNG)}
  assert vote.count(vote.start(bad)) == []
