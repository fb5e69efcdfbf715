# SPDX-License-Identifier: Apache-2.0
"""How the weights of CCA begin."""

import jax
import numpy as np
import pytest

from tests.support import close, tiny
from zaya_jax.model import zaya


def _first(**changes):
  params, _ = zaya.init(tiny.config(**changes), jax.random.key(3))
  return params


def test_conv_std_is_of_the_depthwise_taps_alone():
  plain, wide = _first(), _first(conv_std=0.4)
  taps = wide['layers']['attn'].pop('conv_depthwise')
  assert np.std(taps) == pytest.approx(0.4, rel=0.3)
  # The same draws, 20 times those of --model.init_std=0.02.
  close.assert_close(
    taps, 20 * plain['layers']['attn'].pop('conv_depthwise'), 1e-6
  )
  close.assert_close(wide, plain, 0.0)


def test_without_it_taps_follow_init_std():
  found = _first(init_std=0.1)['layers']['attn']['conv_depthwise']
  assert np.std(found) == pytest.approx(0.1, rel=0.3)
