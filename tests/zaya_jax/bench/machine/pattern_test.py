# SPDX-License-Identifier: Apache-2.0
"""Messages whose elements tell where they are from."""

import jax
import numpy as np
import pytest

from zaya_jax.bench.machine import pattern
from zaya_jax.bench.sweep import frame as frame_lib

N, LENGTH = 4, 300


@pytest.fixture(scope='module')
def messages():
  mesh = jax.make_mesh(
    (N,),
    ('d',),
    axis_types=(jax.sharding.AxisType.Auto,),
    devices=jax.devices()[:N],
  )
  return pattern.Pattern(mesh)


def test_elements_are_base_and_place(messages):
  terms = pattern.terms(pattern.base(N)[:, None])
  found = np.asarray(messages.fill(terms, LENGTH))
  wanted = [[d + 1 + j % 251 for j in range(LENGTH)] for d in range(N)]
  np.testing.assert_array_equal(found, wanted)
  messages.check('this', messages.fill(terms, LENGTH), terms)


@pytest.mark.parametrize('device', range(N))
@pytest.mark.parametrize('place', [0, LENGTH - 1])
def test_one_wrong_element_is_noticed_and_its_device_named(
  messages, device, place
):
  terms = pattern.terms(pattern.base(N)[:, None])
  good = messages.fill(terms, LENGTH)
  bad = np.array(good)
  bad[device, place] = np.nextafter(bad[device, place], np.float32(0))
  bad = jax.device_put(bad, good.sharding)
  name = str(jax.devices()[device])
  with pytest.raises(frame_lib.WrongError, match=f'1 wrong .* {name} of'):
    messages.check('it', bad, terms)


def test_sums_are_exact_in_float32():
  n = 13_000
  largest = pattern.base(n).sum() + n * 250
  assert largest < 2**24
