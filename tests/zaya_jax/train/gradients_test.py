# SPDX-License-Identifier: Apache-2.0
"""Gradients of experts that go to sinks are those that would be stacked."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from ops.experts import sink
from tests.support import meshes, quick
from zaya_jax.model import working
from zaya_jax.parallel import batch as batch_lib
from zaya_jax.train import gradients

WAYS = {
  'alone': {},
  'parts': {'accumulation': 4},
  'experts': {'accumulation': 2, 'replica': 2, 'expert': 2},
}


def found(way, scan_layers):
  config = meshes.config_of(**WAYS[way])
  model = dataclasses.replace(
    config.model,
    num_layers=2,
    scan_layers=scan_layers,
    remat='cheap',
    dtype='bfloat16',
  )
  config = dataclasses.replace(config, model=model)
  mesh, state = meshes.mesh_of(config), meshes.first_state(config)
  run = jax.jit(functools.partial(gradients.loss_and_grads, config))
  with jax.set_mesh(mesh):
    batch = batch_lib.put_batch(mesh, meshes.BATCH)
    return jax.device_get(run(state.params, state.buffers, batch))


@functools.lru_cache(maxsize=1)
def without_sinks(way, **how):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(working, 'takes_sinks', lambda *_: False)
    return found(way, **how)


def assert_same(way, **how):
  jax.tree.map(
    np.testing.assert_array_equal, found(way, **how), without_sinks(way, **how)
  )


@pytest.mark.parametrize('scan_layers', quick.only(('true', 'false'), 'false'))
@pytest.mark.parametrize('way', quick.only(WAYS, 'parts'))
def test_sinks_change_no_bit(way, scan_layers):
  assert_same(way, scan_layers=scan_layers)


def test_part_that_is_not_added_is_noticed(monkeypatch):
  right = sink.put
  wrong = lambda stack, at, part: right(stack, at.at[1].set(0), part)
  monkeypatch.setattr(sink, 'put', wrong)
  with pytest.raises(AssertionError):
    assert_same('parts', scan_layers='false')
