# SPDX-License-Identifier: Apache-2.0
"""Ours beside each peer on virtual devices, and what must not agree; no times.

What is compared is checked by `measure` itself: updates that differ raise.
"""

import dataclasses

import jax
import pytest

from benchmarks import optimizer_step
from tests.support import tiny_case


def config(devices):
  return tiny_case.config('zero1', devices, rows=1, parts=1)


@pytest.mark.parametrize(
  'peer, devices, arrays',
  [
    ('optax_bf16', 2, 11),
    # Two layers of nine matrices, and two of each of four experts.
    pytest.param('leaves', 4, 2 * (9 + 2 * 4), marks=pytest.mark.long),
  ],
)
def test_ours_and_a_peer_agree_and_have_a_row(peer, devices, arrays):
  row = optimizer_step.measure(config(devices), peer, 1)
  assert row['arrays'] == arrays
  assert 0 < row['difference'] <= row['bound']
  assert (
    row['bound']
    == optimizer_step.BOUNDS['bfloat16' if peer == 'optax_bf16' else 'float32']
  )
  assert row['ratio'] == row['peer_s'] / row['ours_s']
  line = {'case': peer, 'devices': devices}
  assert len(optimizer_step.table([line | row] * 2).splitlines()) == 3


def test_other_update_is_noticed_before_anything_is_timed(monkeypatch):
  right = optimizer_step._optimizer

  def wrong(config, peer):
    optim = dataclasses.replace(config.optim, weight_decay=0.0)
    return right(dataclasses.replace(config, optim=optim), peer)

  monkeypatch.setattr(optimizer_step, '_optimizer', wrong)
  with pytest.raises(RuntimeError, match='ours and optax differ by'):
    optimizer_step.measure(config(1), 'optax', 1)


def test_peers_keep_their_part_of_momentum_alone():
  with jax.set_mesh(_mesh(4)):
    params = optimizer_step._matrices(config(4))
    grads = optimizer_step.updates.gradients(params)
  bytes_of = {}
  for peer in ('optax', 'optax_whole'):
    optimizer = optimizer_step._optimizer(config(4), peer)
    _, state, _ = optimizer_step._place(optimizer, peer, grads, params)
    shards = [a.addressable_shards[0].data for a in jax.tree.leaves(state)]
    bytes_of[peer] = sum(s.nbytes for s in shards if s.ndim > 1)
  # bfloat16, but all of it.
  assert bytes_of['optax_whole'] == pytest.approx(2 * bytes_of['optax'], 0.1)


def _mesh(devices):
  return optimizer_step.mesh_lib.make_mesh(
    config(devices).mesh, jax.devices()[:devices]
  )
