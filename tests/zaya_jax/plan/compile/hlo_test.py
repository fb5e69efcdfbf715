# SPDX-License-Identifier: Apache-2.0
"""What is read from compiled programs, against programs that say it."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from zaya_jax.plan.compile import hlo


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


TEXT = """\
%body.1 (p: (s32[], bf16[16,8])) -> (s32[], bf16[16,8]) {
  %p = (s32[], bf16[16,8]{1,0}) parameter(0)
  %s = (bf16[16,8]{1,0}, bf16[16,8]{1,0}) collective-permute-start(%p), \
source_target_pairs={{0,1},{1,2},{2,3},{3,0},{4,5},{5,6},{6,7},{7,4}}
  %s.1 = (bf16[2,8]{1,0}, bf16[2,8]{1,0}) collective-permute-start(%p), \
source_target_pairs={{0,1},{2,3}}
  %d.1 = bf16[2,8]{1,0} collective-permute-done(%s.1)
  %f.1 = bf16[16,8]{1,0} fusion(%p), kind=kOutput, calls=%product
  %d = bf16[16,8]{1,0} collective-permute-done(%s)
  ROOT %t = (s32[], bf16[16,8]{1,0}) tuple(%p, %d)
}

%product (p: bf16[16,8]) -> bf16[16,8] {
  ROOT %dot = bf16[16,8]{1,0} dot(%p, %p)
}

%taken.1 (p: f32[4]) -> f32[4] {
  ROOT %r = f32[4]{0} all-reduce(%p), replica_groups={}, to_apply=%add
}

ENTRY %main.2 (p0: f32[4]) -> f32[32] {
  %p0 = f32[64]{0} parameter(0)
  %w = (s32[], bf16[16,8]{1,0}) while(%t), condition=%c, body=%body.1, \
metadata={op_name="jit(step)/jvp()/while"}, \
backend_config={"known_trip_count":{"n":"40"}}
  %x = f32[4]{0} conditional(%i, %p0), branch_computations={%taken.1, %other.1}
  %alone = f32[4]{0} all-reduce(%p0), replica_groups=[8,1]<=[8], to_apply=%add
  %q = ((f32[64]{0}), f32[16]{0}) reduce-scatter-start(%p0), \
replica_groups=mesh['a'=2,'b'=4] {'b'}, to_apply=%add, \
backend_config={"is_sync":true}
  %f.2 = f32[4]{0} fusion(%p0), kind=kLoop, calls=%fused
  %qd = f32[16]{0} reduce-scatter-done(%q)
  %g = f32[256]{0} ragged-all-to-all(%p0, %o), replica_groups=[2,4]<=[8], \
metadata={op_name="jit(step)/tokens"}
  ROOT %k = (f32[4]{0}, f32[2]{0}) all-reduce-start(%p0, %p0), \
replica_groups={{0,1,2,3}}, to_apply=%add
}
"""


def test_messages_of_a_program_written_by_hand():
  found = hlo.read(TEXT)['messages']
  seen = {
    (m['kind'], m['calls'], m['bytes'], m['dtype'], m['group'], m['hidden'])
    for m in found
  }
  assert seen == {
    # Four devices pass on what a kernel runs beside; two pairs wait.
    ('collective-permute', 40, 40 * 256, 'bf16', 4, True),
    ('collective-permute', 40, 40 * 32, 'bf16', 2, False),
    ('all-reduce', 1, 16, 'f32', 0, False),  # Of all, in a branch.
    # What goes in is larger; and it is no message of its own stream.
    ('reduce-scatter', 1, 256, 'f32', 4, False),
    ('ragged-all-to-all', 1, 256, 'f32', 4, False),  # 64 values; room for 256.
    ('all-reduce', 1, 24, 'f32', 4, False),  # Two arrays in one.
  }
  scopes = {m['kind']: m['scope'] for m in found}
  assert scopes['collective-permute'] == 'jit(step)/jvp()/while'
  assert scopes['ragged-all-to-all'] == 'jit(step)/tokens'


def test_arrays_and_loops_are_listed():
  found = hlo.read(TEXT)
  assert {'bf16[16,8]', 'f32[64]'} <= set(found['arrays'])
  assert found['scopes'] == ['jit(step)/jvp()/while']


def _between(*lines):
  """A program that gathers 128 bytes, with these lines before it waits."""
  body = '\n'.join(f'  {line}' for line in lines)
  return f"""\
%fused.1 (p: f32[4]) -> f32[4] {{
  ROOT %a = f32[4]{{0}} add(%p, %p)
}}

%inner.1 (p: f32[4]) -> f32[4] {{
  ROOT %m = (f32[4]{{0}}, s8[64]{{0}}) custom-call(%p), \
custom_call_target="__cublas$lt$matmul"
}}

%outer.1 (p: f32[4]) -> f32[4] {{
  ROOT %w = f32[4]{{0}} while(%p), condition=%c, body=%inner.1
}}

ENTRY %main.2 (p0: f32[4]) -> f32[32] {{
  %p0 = f32[4]{{0}} parameter(0)
  %g = (f32[4]{{0}}, f32[32]{{0}}) all-gather-start(%p0), dimensions={{0}}
{body}
  ROOT %gd = f32[32]{{0}} all-gather-done(%g)
  %late = (f32[4]{{0}}, s8[64]{{0}}) custom-call(%p0), \
custom_call_target="__cublas$lt$matmul"
}}
"""


@pytest.mark.parametrize(
  'line',
  [
    '%m = f32[4]{0} dot(%p0, %p0)',
    '%m = f32[4]{0} custom-call(%p0), custom_call_target="__cublas$gemm"',
    '%m = f32[4]{0} custom-call(%p0), '
    'custom_call_target="zaya_ops:/lib.so:experts_up"',
    '%w = f32[4]{0} while(%p0), condition=%c, body=%outer.1',  # Nested.
    '%k = f32[4]{0} conditional(%i, %p0), '
    'branch_computations={%fused.1, %inner.1}',
  ],
)
def test_product_between_start_and_end_hides_a_message(line):
  assert hlo.read(_between(line))['exposed'] == {'all-gather': 0}


@pytest.mark.parametrize(
  'lines',
  [
    (),
    ('%f = f32[4]{0} fusion(%p0), kind=kLoop, calls=%fused.1',),
    ('%s = f32[4]{0} custom-call(%p0), custom_call_target="__topk"',),
    # It is waited for before there is a product.
    ('%e = f32[32]{0} all-gather-done(%g)', '%m = f32[4]{0} dot(%p0, %p0)'),
  ],
)
def test_what_no_product_hides_is_exposed(lines):
  assert hlo.read(_between(*lines))['exposed'] == {'all-gather': 128}


def test_messages_that_wait_are_exposed_as_often_as_their_loop_runs():
  found = hlo.read(TEXT)
  assert found['exposed']['collective-permute'] == 40 * 32
  assert found['collectives']['collective-permute']['bytes'] == 40 * (256 + 32)
