# SPDX-License-Identifier: Apache-2.0
"""Sums over batches, and bits per byte."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zaya_jax import config as config_lib
from zaya_jax.inference import score
from zaya_jax.parallel import mesh as mesh_lib


def eval_step(params, buffers, batch):
  weights = batch['weights']
  return jnp.sum(weights) * params + buffers, jnp.sum(weights)


def test_batches_are_summed_over_all_devices():
  mesh = mesh_lib.make_mesh(config_lib.MeshConfig())
  batches = [{'weights': np.full((8, 2), w, np.float32)} for w in (1, 2, 0)]
  found = score.score(eval_step, mesh, 3.0, 0.5, iter(batches))
  assert found == (3.0 * 48 + 3 * 0.5, 48.0)


def test_mean_is_of_what_all_texts_have():
  texts = [{'val/bpb': 1.0, 'val/zlib_bpb': 2.0}, {'val/bpb': 5.0}]
  assert score.mean(texts, [3.0, 1.0]) == {'val/bpb': 2.0}
  one = {'val/bpb': 0.1 + 0.2}
  assert score.mean([one], [1.0]) == one  # To the bit.


def test_text_is_read_as_it_is(tmp_path):
  (tmp_path / 'dos.txt').write_bytes(b'one\r\ntwo\n')
  assert score.read_text(str(tmp_path / 'dos.txt')) == 'one\r\ntwo\n'


def test_long_sums_do_not_lose_small_terms():
  mesh = mesh_lib.make_mesh(config_lib.MeshConfig(replica=1))
  # In float32 2^24 + 1 is 2^24.
  batches = [{'weights': np.full((1, 1), w, np.float32)} for w in (2**24, 1, 1)]
  assert score.score(eval_step, mesh, 1.0, 0.0, batches)[1] == 2**24 + 2


def test_one_batch_is_computed_at_a_time():
  """Several at once have waited for each other's threads for ever."""
  mesh = mesh_lib.make_mesh(config_lib.MeshConfig())
  ready, before = [], []

  @jax.jit
  def slow(weights):
    y = jax.lax.fori_loop(0, 300, lambda _, y: y @ y, jnp.eye(256))
    return jnp.sum(weights) * y[0, 0], jnp.sum(weights)

  def run(params, buffers, batch):
    ready.extend(nats.is_ready() for nats in before[-1:])
    found = slow(batch['weights'])
    before.append(found[0])
    return found

  batches = [{'weights': np.ones((8, 2), np.float32)}] * 4
  score.score(run, mesh, None, None, batches)
  assert ready == [True] * 3


@pytest.mark.parametrize(
  'nats, bytes_per_token, bits', [(np.log(2), 1, 1), (np.log(256), 4, 2)]
)
def test_bits_per_byte(nats, bytes_per_token, bits):
  assert score.bits_per_byte(nats, bytes_per_token) == pytest.approx(bits)
