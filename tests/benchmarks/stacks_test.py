# SPDX-License-Identifier: Apache-2.0
"""The comparison of stacks of gradients sees a layer in the wrong place."""

import pytest

from benchmarks import stacks
from ops import dispatch
from ops.experts import sink


@pytest.mark.parametrize('add', [False, True])
def test_stacks_are_what_each_layer_gets(add):
  with dispatch.use(experts='xla'):
    stacks.compare(add)


@pytest.mark.parametrize('add', [False, True])
def test_a_layer_in_the_wrong_place_is_told(monkeypatch, add):
  put = sink.put
  moved = lambda stack, at, part: put(stack, at.at[0].set(1), part)
  monkeypatch.setattr(sink, 'put', moved)
  with dispatch.use(experts='xla'), pytest.raises(AssertionError):
    stacks.compare(add)
