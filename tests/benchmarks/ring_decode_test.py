# SPDX-License-Identifier: Apache-2.0
"""The peers compute the same, with the messages that they are said to send."""

import functools
import re

import jax
import pytest

from benchmarks.peers import ring_decode
from tests.support import close, context_cases

PEERS = (ring_decode.rotate_partials, ring_decode.rotate_keys)


@functools.cache
def run(peer, devices):
  return context_cases.sharded(peer, devices, check_vma=False)


@pytest.mark.parametrize('peer', PEERS)
@pytest.mark.parametrize(
  'case', ['half_of_the_devices_empty', 'padding_and_window']
)
def test_equals_attention_on_one_device(case, peer):
  length, offset, window, padding = context_cases.CASES[case]
  given = (*context_cases.arrays(length, padding), offset, window)
  expected = context_cases.expected(*given)
  close.assert_close(run(peer, 4)(*given), expected, 1e-6)


@pytest.mark.parametrize('peer', PEERS)
def test_a_ring_that_stands_still_is_noticed(peer, monkeypatch):
  monkeypatch.setattr(jax.lax, 'ppermute', lambda x, axis, pairs: x)
  given = (*context_cases.arrays(1), 63, context_cases.ALL)
  found = context_cases.sharded(peer, 4, check_vma=False)(*given)
  assert close.error(found, context_cases.expected(*given)) > 0.01


@pytest.mark.parametrize('peer, messages', [(PEERS[0], 1), (PEERS[1], 3)])
def test_messages_per_turn(peer, messages):
  # Keys and values travel with the mask of padding.
  hlo = run(peer, 4).lower(*context_cases.arrays(1), 5, 7).compile().as_text()
  permutes = re.findall(r' collective-permute(?:-start)?\(', hlo)
  assert len(permutes) == 3 * messages
  assert not re.search(r' all-(reduce|gather|to-all)', hlo)
