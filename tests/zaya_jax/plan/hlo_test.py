# SPDX-License-Identifier: Apache-2.0
"""What is read from compiled programs, against programs that say it."""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from zaya_jax.plan import hlo


def _compiled(trips):
  """An all-reduce of [4, 8] float32 in a loop, then a gather to [32, 8]."""
  mesh = jax.make_mesh((8,), ('x',), axis_types=(AxisType.Auto,))

  @functools.partial(
    jax.shard_map, mesh=mesh, in_specs=P('x'), out_specs=P(), check_vma=False
  )
  def run(x):
    one = lambda _, x: jax.lax.psum(jnp.sin(x), 'x')
    x = jax.lax.fori_loop(0, trips, one, x)
    return jax.lax.all_gather(x, 'x', tiled=True)

  x = jax.ShapeDtypeStruct((32, 8), jnp.float32)
  return jax.jit(run).lower(x).compile().as_text()


def test_what_is_in_a_loop_counts_as_often_as_it_runs():
  found = hlo.read(_compiled(7))['collectives']
  assert found['all-reduce'] == {'calls': 7, 'bytes': 7 * 4 * 8 * 4}
  assert found['all-gather'] == {'calls': 1, 'bytes': 32 * 8 * 4}
  assert hlo.read(_compiled(3))['collectives']['all-reduce']['calls'] == 3


def test_asynchronous_forms_of_gpus():
  text = """\
HloModule step

%body.1 (p: (s32[], bf16[16,8])) -> (s32[], bf16[16,8]) {
  %f.1 = bf16[16,8]{1,0} fusion(%p), kind=kLoop, calls=%fused
  %r = bf16[16,8]{1,0} all-reduce-start(%f.1), to_apply=%add
  ROOT %d = bf16[16,8]{1,0} all-reduce-done(%r)
}

ENTRY %main.2 (p0: f32[4]) -> f32[32] {
  %w = (s32[], /*index=1*/bf16[16,8]{1,0}) while(%t), condition=%c, \
body=%body.1, backend_config={"known_trip_count":{"n":"40"}}
  %g = (f32[4]{0}, f32[32]{0}) all-gather-start(%p0), dimensions={0}
  %a = ((f32[8,2]{1,0}), f32[8,2]{1,0}) all-to-all-start(%p0), dimensions={0}
  %m = (f32[8]{0}, s8[64]{0}) custom-call(%g), \
custom_call_target="__cublas$lt$matmul"
  ROOT %gd = f32[32]{0} all-gather-done(%g)
}
"""
  found = hlo.read(text)
  assert found['collectives'] == {
    'all-reduce': {'calls': 40, 'bytes': 40 * 16 * 8 * 2},
    'all-gather': {'calls': 1, 'bytes': 32 * 4},
    'all-to-all': {'calls': 1, 'bytes': 16 * 4},
  }
  assert found['kernels'] == {
    'fusion': {'launches': 40, 'sites': 1},
    '__cublas$lt$matmul': {'launches': 1, 'sites': 1},
  }
