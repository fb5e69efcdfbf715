# SPDX-License-Identifier: Apache-2.0
"""What collectives have to give, and their factors."""

import jax
import numpy as np
import pytest

from tests.support.collectives import SIZE, N, in_numpy, sent
from zaya_jax.bench.machine import collectives, kinds


@pytest.mark.parametrize('name', kinds.KINDS)
def test_result_that_is_asked_for_is_that_of_numpy(name):
  a, b, c = kinds.KINDS[name].terms(N, SIZE // 4)
  wanted = in_numpy(name, sent(name))
  length = wanted.shape[1] // a.shape[1]
  place = np.arange(length)[None, None]
  found = a[..., None] + b[..., None] * ((c[..., None] + place) % 251)
  np.testing.assert_array_equal(found.reshape(N, -1), wanted)


@pytest.mark.parametrize(
  'name, factor',
  [
    ('all-reduce', 1.75),
    ('reduce-scatter', 0.875),
    ('all-gather', 0.875),
    ('all-to-all', 0.875),
    ('broadcast', 1.0),
    ('permute', 1.0),
  ],
)
def test_factors_are_those_of_nccl_tests(name, factor):
  assert kinds.KINDS[name].factor(8) == factor


def test_ring_all_reduce_keeps_a_link_busy():
  """On n devices in a ring each link carries 2 (n - 1) / n of the message."""
  link, size = 50e9, 2**30
  for n in (2, 3, 8, 64):
    seconds = 2 * (n - 1) * (size / n) / link  # As many turns of a part.
    bus = kinds.KINDS['all-reduce'].factor(n) * size / seconds
    assert bus == pytest.approx(link)


def test_jax_has_a_broadcast_for_gpus():
  """Nothing else runs it here."""
  group = collectives.Group(jax.devices()[:N])
  one = lambda x: kinds.KINDS['broadcast'].call(x, N)
  mapped = jax.shard_map(
    one,
    mesh=group.mesh,
    in_specs=jax.P('d'),
    out_specs=jax.P('d'),
    check_vma=False,
  )
  traced = jax.jit(mapped).trace(np.zeros((N, 3), np.float32))
  for platform in ('cuda', 'rocm'):
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert 'collective_broadcast' in text
