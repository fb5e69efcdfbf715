# SPDX-License-Identifier: Apache-2.0
"""The gradient of the embedding: made in order, also where it is divided."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from ops import dispatch
from tests.support import gpus, meshes
from zaya_jax.model import embedding
from zaya_jax.parallel import mesh as mesh_lib
from zaya_jax.parallel import partition

V, D = 40, 16
ROWS = mesh_lib.spec('batch', 'length')


def arrays():
  """Embedding, tokens, and the gradient of what is looked up."""
  rng = np.random.default_rng(0)
  tokens = np.minimum(rng.zipf(1.4, (4, 16)) - 1, V - 1).astype(np.int32)
  table, d_x = rng.standard_normal((V, D)), rng.standard_normal((4, 16, D))
  return table.astype(np.float32), tokens, d_x.astype(np.float32)


def gradient(axes):
  """Of the embedding, summed over devices that have rows and parts of it."""
  table, tokens, d_x = arrays()
  mesh = meshes.mesh_of(meshes.config_of(**axes))
  like = {'embed': jax.ShapeDtypeStruct((V, D), jnp.float32)}

  def local(params, tokens, d_x):
    def value(params):
      whole = partition.gather_outer(params, like)['embed']
      return jnp.sum(embedding.in_order(V, whole, tokens) * d_x)

    return partition.sum_gradients(jax.grad(value)(params), like)

  with jax.set_mesh(mesh):
    params = partition.place({'embed': jnp.asarray(table)})
    specs = mesh_lib.specs_of(params)
    run = mesh_lib.on_each(
      local, in_specs=(specs, ROWS, P(*ROWS, None)), out_specs=specs
    )
    tokens, d_x = (
      mesh_lib.reshard(jnp.asarray(a), spec)
      for a, spec in ((tokens, ROWS), (d_x, P(*ROWS, None)))
    )
    return np.asarray(jax.jit(run)(params, tokens, d_x)['embed'])


def expected():
  _, tokens, d_x = arrays()
  total = np.zeros((V, D))
  np.add.at(total, tokens, np.float64(d_x))
  return total


@pytest.mark.parametrize('axes', [{}, {'replica': 2, 'fsdp': 2}])
def test_gradient_is_that_of_float64(axes):
  np.testing.assert_allclose(gradient(axes), expected(), rtol=0, atol=1e-5)


def test_wrong_place_is_noticed(monkeypatch):
  right = embedding.row_sums.sum_rows
  wrong = lambda row, place, *more: right(row, place + 1, *more)
  monkeypatch.setattr(embedding.row_sums, 'sum_rows', wrong)
  assert np.abs(gradient({}) - expected()).max() > 0.1


def _lowered(platform, width):
  value = lambda table, tokens: jnp.sum(embedding.look_up(table, tokens) ** 2)
  table = jax.ShapeDtypeStruct((8192, width), jnp.float32)
  tokens = jax.ShapeDtypeStruct((4, 1024), jnp.int32)
  with dispatch.compile_for(platform):
    traced = jax.jit(jax.grad(value)).trace(table, tokens)
    if platform == 'cpu':
      return traced.lower().as_text()
    return gpus.lower(traced, platform).as_text()


def test_cuda_has_no_scatter_that_adds():
  assert 'stablehlo.scatter' not in _lowered('cuda', 512)
  # What the kernel cannot count is left to XLA, as on other platforms.
  assert 'stablehlo.scatter' in _lowered('cuda', 2**19)
  assert 'stablehlo.scatter' in _lowered('cpu', 512)
