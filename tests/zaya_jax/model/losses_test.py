# SPDX-License-Identifier: Apache-2.0
"""The loss is cut into chunks on every device, and nobody can tell."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from ops.cross_entropy import xla
from tests.support import tiny
from tests.support.reference import zaya_numpy
from zaya_jax import config as config_lib
from zaya_jax.model import losses, zaya
from zaya_jax.parallel import batch as batch_lib
from zaya_jax.parallel import mesh as mesh_lib
from zaya_jax.train import gradients

MODEL = config_lib.ModelConfig(
  num_layers=1,
  d_model=16,
  num_heads=2,
  num_kv_heads=1,
  head_dim=8,
  num_experts=2,
  d_expert=16,
  d_router=8,
  vocab_size=64,
  head_bias=True,
)
CONFIG = config_lib.Config(
  model=MODEL, data=config_lib.DataConfig(batch_size=8, seq_len=16)
)


def loss_and_grads(devices):
  mesh = mesh_lib.make_mesh(CONFIG.mesh, jax.devices()[:devices])
  rng = np.random.default_rng(0)
  tokens = rng.integers(1, 64, (8, 17), dtype=np.int32)
  batch = {
    'tokens': tokens[:, :-1],
    'targets': tokens[:, 1:],
    'weights': (rng.random((8, 16)) < 0.7).astype(np.float32),
    'segment_ids': np.ones((8, 16), np.int32),
    'positions': np.tile(np.arange(16, dtype=np.int32), (8, 1)),
  }
  with jax.set_mesh(mesh):
    arrays = jax.device_put(tiny.arrays(MODEL), mesh_lib.sharding(mesh))
    run = jax.jit(
      lambda p, b, batch: gradients.loss_and_grads(CONFIG, p, b, batch)
    )
    return jax.device_get(run(*arrays, batch_lib.put_batch(mesh, batch)))


@pytest.mark.parametrize(
  'devices', [pytest.param(1, marks=pytest.mark.long), 4]
)
def test_chunks_on_devices_give_the_loss_of_one_chunk(monkeypatch, devices):
  expected = loss_and_grads(1)
  monkeypatch.setattr(xla, 'chunk_tokens', lambda tokens, vocab: 8)
  actual = loss_and_grads(devices)
  for a, e in zip(
    jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True
  ):
    # Sums of up to 128 float32 terms in another order.
    np.testing.assert_allclose(a, e, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize('devices', [0, 4])
def test_log_probs_are_those_of_the_specification(monkeypatch, devices):
  """In chunks, on devices; positions may repeat and padding may follow."""
  model = tiny.config(head_bias=True, tie_embeddings=False)
  params, buffers = tiny.arrays(model)
  rng = np.random.default_rng(0)
  tokens_BL = rng.integers(0, 40, (4, 12))
  index_BK, targets_BK = rng.integers(0, 9, (4, 7)), rng.integers(0, 40, (4, 7))
  logits_BLV = []
  for tokens_L in tokens_BL[:, :9]:
    logits = zaya_numpy.forward(model, params, buffers, tokens_L).logits
    logits_BLV.append(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))
  wanted_BKV = np.take_along_axis(
    np.stack(logits_BLV), index_BK[..., None], axis=1
  )
  targets_BK[:, ::2] = wanted_BKV.argmax(-1)[:, ::2]
  wanted_BK = np.take_along_axis(wanted_BKV, targets_BK[..., None], -1)[..., 0]

  monkeypatch.setattr(losses, '_MAX_LOGITS', 40 * 3)
  batch = tokens_BL, index_BK, targets_BK
  rows = mesh_lib.spec('batch', 'length')

  @jax.jit
  def run(*args):
    return mesh_lib.on_each(
      lambda p, b, *batch: losses.log_probs(zaya.bind(model, p, b), *batch),
      in_specs=(P(), P(), rows, rows, rows),
      out_specs=(rows, rows),
    )(*args)

  with contextlib.ExitStack() as stack:
    if devices:
      mesh = mesh_lib.make_mesh(config_lib.MeshConfig(replica=devices))
      stack.enter_context(jax.set_mesh(mesh))
      batch = jax.device_put(batch, mesh_lib.sharding(mesh, 'batch', 'length'))
      arrays = jax.device_put((params, buffers), mesh_lib.sharding(mesh))
      params, buffers = arrays
    found_BK, likeliest_BK = jax.device_get(run(params, buffers, *batch))
  np.testing.assert_allclose(found_BK, wanted_BK, rtol=1e-4, atol=1e-5)
  np.testing.assert_array_equal(
    likeliest_BK, targets_BK == wanted_BKV.argmax(-1)
  )
  assert 0 < likeliest_BK.mean() < 1


def test_log_probs_of_a_bfloat16_model_are_float32():
  model = tiny.config(dtype='bfloat16')
  arrays = jax.eval_shape(lambda: zaya.init(model, jax.random.key(0)))
  tokens = jnp.zeros((1, 4), jnp.int32)
  nats, _ = jax.eval_shape(
    lambda p, b: losses.log_probs(zaya.bind(model, p, b), *[tokens] * 3),
    *arrays,
  )
  assert nats.dtype == jnp.float32
