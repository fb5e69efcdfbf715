# SPDX-License-Identifier: Apache-2.0
"""Sums by the rules of who holds what; states that move to another mesh."""

import jax
import numpy as np
import pytest

from tests.support import meshes, quick, tracing
from zaya_jax import config as config_lib
from zaya_jax.checkpoint import arrays
from zaya_jax.checkpoint.writing import manager
from zaya_jax.parallel import batch as batch_lib
from zaya_jax.parallel import placement
from zaya_jax.train import state as state_lib
from zaya_jax.train import step as step_lib


@pytest.mark.parametrize('layers', [True, False])
def test_large_stacks_are_sent_layer_by_layer(layers, monkeypatch):
  if layers:
    monkeypatch.setattr(placement, 'STACK_BYTES', 0)
  sent = messages(meshes.config_of(accumulation=2, **meshes.SHAPES['zero_2']))
  stacked = (meshes.MODEL.num_layers, 8, 16, 32)  # Of gate_up.
  part = (meshes.MODEL.num_layers, 8, 8, 32)
  for kind, shape in (('all_gather', stacked), ('reduce_scatter', part)):
    assert (shape in sent[kind]) != layers
    assert (shape[1:] in sent[kind]) == layers


def test_layers_send_their_own_matrices_where_a_step_has_one_part():
  sent = messages(meshes.config_of(**meshes.SHAPES['zero_2']))
  assert (8, 16, 32) in sent['all_gather']
  assert (8, 8, 32) in sent['reduce_scatter']
  # Of all layers at once: vectors.
  stacked = {s for s in set().union(*sent.values()) if s[0] == 3}
  assert stacked and all(len(shape) == 2 for shape in stacked)


@pytest.mark.parametrize(
  'after',
  quick.only(('zero_2_expert_4', 'zero_2', 'fsdp_8'), 'zero_2_expert_4'),
)
def test_state_of_eight_devices_goes_on_elsewhere(tmp_path, after):
  config = meshes.config_of(**meshes.SHAPES['zero_8'])
  state, _ = advance(config, meshes.first_state(config))
  with manager.Manager(str(tmp_path), config_lib.CheckpointConfig()) as saved:
    saved.save(2, state, data_index=0, meta={})
    saved.wait()
    elsewhere = meshes.config_of(**meshes.SHAPES[after])
    mesh = meshes.mesh_of(elsewhere)
    with jax.set_mesh(mesh):
      init = jax.eval_shape(state_lib.make_init(elsewhere))
    restored, *_ = saved.restore(2, arrays.on_mesh(init, mesh))
  found, expected = jax.device_get((restored, state))
  jax.tree.map(np.testing.assert_array_equal, found, expected)
  _, found = advance(elsewhere, restored)
  _, expected = advance(config, state)
  np.testing.assert_allclose(found, expected, rtol=1e-5)


def messages(config):
  """Of a step that is traced: kind of collective -> shapes of its results."""
  mesh = meshes.mesh_of(config)
  with jax.set_mesh(mesh):
    step = jax.make_jaxpr(step_lib.make_train_step(config))
    batch = batch_lib.put_batch(mesh, meshes.BATCH)
    traced = step(meshes.first_state(config), batch)
  sent = {}
  for e in tracing.equations(traced):
    shape = getattr(e.outvars[0].aval, 'shape', ()) if e.outvars else ()
    sent.setdefault(e.primitive.name, set()).add(shape)
  return {kind: sent[kind] for kind in ('all_gather', 'reduce_scatter')}


def advance(config, state):
  """Two steps on."""
  run, losses = meshes.compiled(config), []
  for _ in range(2):
    batch = batch_lib.put_batch(meshes.mesh_of(config), meshes.BATCH)
    state, measured = run(state, batch)
    losses.append(float(measured['train/loss']))
  return state, losses
