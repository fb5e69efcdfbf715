# SPDX-License-Identifier: Apache-2.0
"""Sums by the rules of who holds what."""

import jax
import pytest

from tests.support import meshes, tracing
from zaya_jax.parallel import batch as batch_lib
from zaya_jax.parallel import placement
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
