# SPDX-License-Identifier: Apache-2.0
"""A model whose rows are divided is the model, in value and in gradient."""

import functools

import jax
import numpy as np
import pytest

from tests.support import close, quick, tiny
from zaya_jax import config as config_lib
from zaya_jax.parallel import batch as batch_lib
from zaya_jax.parallel import mesh as mesh_lib
from zaya_jax.parallel.context import halo
from zaya_jax.train import gradients

SEGMENTS = halo.segments

# Drawn once: devices, tokens, documents a row, mode, and what the model has.
SLIDES = {'sliding_layers': (1,), 'sliding_window': 5}
DRAWS = [
  (2, 8, 1, 'gather', {}),
  (2, 36, 5, 'ring', SLIDES),
  (4, 16, 3, 'gather', {'attention_bias': True}),
  (4, 40, 2, 'ring', {'remat': 'block'}),
  (8, 32, 1, 'ring', {'attention_bias': True}),
  (8, 64, 9, 'gather', {**SLIDES, 'remat': 'block'}),
]


def batch_of(model, length, documents):
  """Rows of documents of drawn lengths, and some padding behind them."""
  batch = tiny.batch(model, rows=2, length=length, seed=documents)
  rng = np.random.default_rng(length)
  for row in range(2):
    cuts = np.sort(rng.choice(np.arange(1, length - 2), documents - 1, False))
    segments = 1 + np.searchsorted(cuts, np.arange(length), 'right')
    starts = np.concatenate([[0], cuts])[segments - 1]
    batch['segment_ids'][row] = segments
    batch['positions'][row] = np.arange(length) - starts
    batch['segment_ids'][row, length - row :] = 0
    batch['weights'][row] = batch['segment_ids'][row] > 0
  return batch


def loss_and_grads(draw, devices, use=lambda found: found):
  """What `use` takes of the loss, the gradients and the load."""
  n, length, documents, mode, changes = draw
  model = tiny.config(num_experts=2, **changes)
  config = config_lib.Config(
    model=model,
    mesh=config_lib.MeshConfig(replica=1, context=devices, context_mode=mode),
  )
  mesh = mesh_lib.make_mesh(config.mesh)
  run = jax.jit(lambda *args: use(gradients.loss_and_grads(config, *args)))
  with jax.set_mesh(mesh):
    arrays = jax.device_put(tiny.arrays(model), mesh_lib.sharding(mesh))
    batch = batch_lib.put_batch(mesh, batch_of(model, length, documents))
    return jax.device_get(run(*arrays, batch))


@functools.cache
def alone(index):
  """Of one of the draws on one device."""
  return loss_and_grads(DRAWS[index], 1)


# meshes_test gathers rows in a whole step.
@pytest.mark.parametrize(
  'index', quick.only(range(len(DRAWS)), 1), ids=lambda i: str(DRAWS[i])
)
def test_divided_rows_give_the_same_loss_and_gradients(index):
  draw, expected = DRAWS[index], alone(index)
  found = loss_and_grads(draw, draw[0])
  np.testing.assert_array_equal(found[2], expected[2])
  close.assert_close(found, expected, close.FLOAT32_DEEP)


def test_a_document_before_the_chunk_that_is_taken_for_none_is_noticed(
  monkeypatch,
):
  expected = alone(1)
  monkeypatch.setattr(
    halo, 'segments', lambda x, n, **kw: 0 * SEGMENTS(x, n, **kw)
  )
  found = loss_and_grads(DRAWS[1], 2, lambda found: found[0])
  assert close.error(found, expected[0]) > 100 * close.FLOAT32_DEEP
