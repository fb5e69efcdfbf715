# SPDX-License-Identifier: Apache-2.0
"""Collectives against closed forms, and against rings that are carried out."""

import dataclasses

import numpy as np
import pytest

from tests.support import released
from zaya_jax.plan.cost import collectives as collectives_lib
from zaya_jax.plan.cost import division, network
from zaya_jax.runtime import chips

PARAMETERS = 8_840_488_784 + 256  # Layer 0 stores a vector it does not use.


def _layout(**sizes):
  sizes = {axis: sizes.get(axis, 1) for axis in division.AXES}
  return division.Layout(sizes=sizes, parts=1, rows=1, columns=64, seq_len=64)


def _list(shape, *words):
  config = released.parse(*words)
  return collectives_lib.plan(config, shape, chips.CHIPS['mi300x'])


def _seconds(shape, chip, kind, total):
  axes = ('replica',)
  group = network.Group(shape.size(axes), shape.local(axes, chip.node))
  return network.seconds(chip, None, kind, group, 1, total).seconds


def _plan(shape, *words):
  return {(c.kind, c.what): c for c in _list(shape, *words)}


# Of each layer's matrices, those that 1,024 does not divide: the router's small
# ones and the grouped convolutions; and vectors: their biases, those of the
# router, and temperatures.
WHOLE = 40 * (2 * 256**2 + 256 * 17 + 2 * 10 * 128**2)
WHOLE += 40 * (4 * 1280 + 5 * 256 + 2)
EXPERTS = 40 * 16 * 3 * 2048**2


def test_zero_1_gathers_and_sums_layer_by_layer():
  found = _plan(_layout(replica=1024))
  matrices = 8_289_167_360 - 40 * (2 * 256**2 + 256 * 17) - EXPERTS
  experts = found['all-gather', 'layer expert weights']
  layers = found['all-gather', 'layer parameters']
  rest = found['all-gather', 'parameters']
  # Of the convolutions the depthwise one is as wide as queries and keys, 1,280.
  assert experts.bytes == 2 * EXPERTS
  assert layers.bytes == 4 * matrices
  assert rest.bytes == 4 * (PARAMETERS - WHOLE - EXPERTS - matrices)
  # Gradients are float32, of experts too.
  sums = found['reduce-scatter', 'layer gradients']
  assert sums.bytes == 4 * (EXPERTS + matrices)
  assert found['reduce-scatter', 'gradients'].bytes == rest.bytes
  assert found['all-reduce', 'gradients'].bytes == 4 * WHOLE
  assert sums.count == layers.count + experts.count == 40 * 8
  # They run behind the passes that compute with them.
  hidden = {c.what: c.hidden for c in found.values() if c.hidden}
  assert hidden == {
    'layer expert weights': 'forward', 'layer parameters': 'forward',
    'layer gradients': 'backward',
  }  # fmt: skip
  # Momentum to whole matrices, and updates back, bfloat16. 1,024 devices have
  # one of each shape at most: the stacks are padded. q and out are divided
  # along different sides, so they are not of one stack.
  stacks = 2048 * (4096 + 2048 + 1024 + 1024 + 256 + 128)
  assert found['all-to-all', 'Muon'].bytes == 2 * 2 * stacks
  # Results of those that are whole everywhere.
  assert found['all-gather', 'Muon'].bytes == 2 * 1024 * 256 * (256 + 17)
  assert set(found) == {
    ('reduce-scatter', 'layer gradients'), ('reduce-scatter', 'gradients'),
    ('all-gather', 'layer expert weights'), ('all-gather', 'layer parameters'),
    ('all-gather', 'parameters'), ('all-reduce', 'gradients'),
    ('all-to-all', 'Muon'), ('all-gather', 'Muon'),
    ('all-reduce', 'loss, norm, load'),
  }  # fmt: skip


def test_a_sample_of_the_load_is_summed_where_it_moves_the_bias():
  key = 'all-reduce', 'sample of the load'
  layout = _layout(replica=1024)
  assert key not in _plan(layout, '--optim.balance=adam')
  # Of 4,096 rows of 4,096 tokens one token in 256.
  words = '--data.batch_size=4096', '--data.seq_len=4096'
  found = _plan(layout, '--optim.balance=quantile', *words)[key]
  assert found.bytes == 4 * 4096 * 16 * 40 * 17 and found.count == 1


def test_parts_of_a_step_gather_and_sum_once():
  """Nothing more is sent, and nothing hides it."""
  one = _plan(_layout(replica=1024))
  parts = dataclasses.replace(_layout(replica=1024), parts=4)
  found = _plan(parts)
  assert not any(c.hidden for c in found.values())
  for kind in ('all-gather', 'reduce-scatter', 'all-reduce'):
    sent = [
      sum(c.bytes for key, c in known.items() if key[0] == kind)
      for known in (found, one)
    ]
    assert sent[0] == sent[1]
  # Two matrices of each expert are large enough to be sent layer by layer.
  assert found['all-gather', 'expert weights'].count == 2 * 40


def test_eight_devices_divide_every_number_of_matrices():
  eight = _plan(_layout(replica=8))['all-to-all', 'Muon'].bytes
  assert eight == 2 * 2 * 8_289_167_360 / 8


def test_one_device_sends_nothing():
  assert not _plan(_layout())


def test_fsdp_gathers_layers_twice_and_reduces_gradients_once():
  found = _plan(_layout(fsdp=8))
  embedding = 262_272 * 2048
  vectors = 2048 * 3 + 40 * (2048 * 10 + 1280 * 2 + 256 * 5 + 2)
  matrices = PARAMETERS - embedding - vectors
  # float32, forward and, by remat, backward; the embedding once.
  assert found['all-gather', 'weights'].bytes == 4 * (2 * matrices + embedding)
  once = _plan(_layout(fsdp=8), '--model.remat=none')['all-gather', 'weights']
  assert once.bytes == 4 * (matrices + embedding)
  # Vectors are whole, their state is not: reduced in the end, like ZeRO-1.
  sums = [c for c in _list(_layout(fsdp=8)) if 'gradients' in c.what]
  assert sum(c.bytes for c in sums) == 4 * PARAMETERS
  (layers,) = [c for c in sums if c.hidden]
  assert layers.bytes == 4 * (matrices + embedding)


def test_experts_move_each_token_there_and_back():
  shape = _layout(expert=4)
  moved = _plan(shape, '--model.remat=none')['all-to-all', 'tokens']
  # Forward and backward, dispatch and combine; bfloat16, and room for twice an
  # even share.
  assert moved.count == 4 * 40
  assert moved.bytes == 4 * 40 * 2 * 64 * 2048 * 2
  assert _plan(shape, '--model.remat=cheap')['all-to-all', 'tokens'] == moved
  again = _plan(shape, '--model.remat=block')['all-to-all', 'tokens']
  assert again.bytes == moved.bytes * 6 / 4


def test_context_gathers_512_values_a_token_and_layer():
  words = '--data.seq_len=32768', '--data.batch_size=512', '--model.remat=none'
  shape = division.Layout(
    sizes={'replica': 1, 'fsdp': 1, 'expert': 1, 'context': 2},
    parts=1, rows=1, columns=16384, seq_len=32768,
  )  # fmt: skip
  found = _plan(shape, *words)
  # 32 MiB a layer of 32,768 tokens, forward and backward; gradients float32.
  assert found['all-gather', 'keys, values'].bytes == 2 * 40 * 32 * 2**20
  assert found['reduce-scatter', 'their gradients'].bytes == 40 * 64 * 2**20
  # Two tokens of 1,280 channels and 128 before each of two chunks; forward and
  # backward.
  halo = found['permute', 'halo']
  assert (halo.count, halo.bytes) == (160, 160 * 2 * 2 * (1280 + 128))
  ring = _plan(shape, *words, '--mesh.context_mode=ring')
  assert ring['permute', 'keys, values'].bytes == 2 * 40 * 16 * 2**20
  assert ring['permute', 'their gradients'].bytes == 40 * 32 * 2**20


def test_network_by_hand():
  chip, share = chips.CHIPS['mi300x'], network.EFFICIENCY
  latency = lambda halvings: network.LATENCY * halvings
  time = lambda shape, kind: _seconds(shape, chip, kind, 8e9)
  # Eight devices: seven links of 64 GB/s carry seven eighths.
  node = time(_layout(replica=8), 'all-gather')
  assert node == pytest.approx(1e9 / 64e9 / share + latency(3))
  # Two: one link, half of it.
  pair = time(_layout(replica=2), 'all-gather')
  assert pair == pytest.approx(4e9 / 64e9 / share + latency(1))
  # Four nodes: eight cards of 50 GB/s let in what others have.
  nodes = time(_layout(replica=32), 'all-gather')
  assert nodes == pytest.approx(8e9 * 31 / 32 / 400e9 / share + latency(5))
  # One device of each node: one card.
  apart = time(_layout(replica=4, context=8), 'all-gather')
  assert apart == pytest.approx(6e9 / 50e9 / share + latency(2))
  # All-to-all: each device sends 24 of 32 parts through its own card.
  mixed = time(_layout(replica=32), 'all-to-all')
  assert mixed == pytest.approx(6e9 / 50e9 / share + latency(5))


def _ring_reduce_scatter(x):
  """Device d ends with the sum of chunk d + 1; counts what each one sends."""
  n, sent = len(x), 0
  for step in range(n - 1):
    moving = [(d, (d - step) % n) for d in range(n)]
    chunks = [x[d][c].copy() for d, c in moving]
    for (d, c), chunk in zip(moving, chunks, strict=True):
      x[(d + 1) % n][c] += chunk
    sent += 1
  return sent


def _ring_all_gather(x):
  """Device d starts with chunk d + 1; each ends with all."""
  n, sent = len(x), 0
  for step in range(n - 1):
    moving = [(d, (d + 1 - step) % n) for d in range(n)]
    for d, c in moving:
      x[(d + 1) % n][c] = x[d][c]
    sent += 1
  return sent


@pytest.mark.parametrize('n', [2, 4, 8])
def test_bytes_are_those_of_rings(n):
  """Each device holds n chunks; time is of what the busiest one sends."""
  chip, total = chips.CHIPS['h200'], 8e9

  def sent(kind):
    took = _seconds(_layout(replica=n), chip, kind, total)
    latency = network.LATENCY * np.log2(n)
    return (took - latency) * 450e9 * network.EFFICIENCY / (total / n)

  x = np.random.default_rng(0).normal(size=(n, n, 3))
  whole = x.sum(0)
  reduced = _ring_reduce_scatter(x)
  for d in range(n):
    np.testing.assert_allclose(x[d][(d + 1) % n], whole[(d + 1) % n])
  gathered = _ring_all_gather(x)
  for d in range(n):
    np.testing.assert_allclose(x[d], whole)  # An all-reduce is both.
  assert sent('reduce-scatter') == pytest.approx(reduced)
  assert sent('all-gather') == pytest.approx(gathered)
  assert sent('all-reduce') == pytest.approx(reduced + gathered)
  # To each of the others its chunk; and all chunks to one neighbor.
  assert sent('all-to-all') == pytest.approx(n - 1)
  assert sent('permute') == pytest.approx(n)


def test_seconds_of_zero_1_by_hand():
  found = _plan(_layout(replica=1024))
  # 1,023 of 1,024 parts through eight cards of 50 GB/s, of which 0.8 is
  # reached; ten halvings of 15 us for each call.
  for sums in (
    found['reduce-scatter', 'layer gradients'],
    found['all-gather', 'layer expert weights'],
  ):
    assert sums.seconds == pytest.approx(
      sums.bytes * 1023 / 1024 / 320e9 + sums.count * 150e-6
    )
  rest = found['all-reduce', 'gradients']
  assert rest.seconds == pytest.approx(
    4 * WHOLE * 2 * 1023 / 1024 / 320e9 + rest.count * 150e-6
  )
