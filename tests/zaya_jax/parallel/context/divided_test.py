# SPDX-License-Identifier: Apache-2.0
"""Attention of divided rows is attention, in value and in gradient."""

import functools
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from ops.attention import reference
from tests.support import close, quick, rows
from zaya_jax.parallel import zigzag as zigzag_lib
from zaya_jax.parallel.context import blocks, gather, ring_attention

MODES = {'gather': gather, 'ring': ring_attention}
# Devices, length, packing, window, rows of a block.
DRAWS = [
  (2, 16, 'one', None, 64),
  (2, 24, 'many', 5, 3),
  (2, 12, 'two', None, 64),
  (4, 32, 'many', None, 64),
  (4, 24, 'two', 7, 2),
  (4, 48, 'padded', 2, 4),
  (4, 8, 'many', 3, 64),
  (8, 48, 'padded', None, 64),
  (8, 64, 'many', 17, 2),
]


def arrays(length, dtype=jnp.float32):
  """q, k, v and the gradient of the output."""
  return rows.arrays(length, (rows.H, rows.K, rows.K, rows.H), rows.C, dtype)


def value_and_gradient(f, q, k, v, d_out):
  out, back = jax.vjp(f, q, k, v)
  return out, back(d_out)


def divided(mode, n, packing, window, length, segmented=True):
  local = lambda q, k, v, segments: MODES[mode].attention(
    q,
    k,
    v,
    axis='context',
    segments_BS=segments if segmented else None,
    window=window,
  )
  f = rows.divided(local, n, whole=(3,))
  segments = rows.documents(packing, length)
  return lambda q, k, v: f(q, k, v, segments)


@functools.cache
def expected(length, packing, window, dtype):
  segments = rows.documents(packing, length)
  f = lambda q, k, v: reference.attention(
    q, k, v, q_segments_BL=segments, k_segments_BS=segments, window=window
  )
  run = jax.jit(functools.partial(value_and_gradient, f))
  return run(*arrays(length, dtype))


def error(mode, draw, dtype=jnp.float32, segmented=True, kind=lambda w: w):
  n, length, packing, window, _ = draw
  f = divided(mode, n, packing, kind(window), length, segmented)
  found = jax.jit(functools.partial(value_and_gradient, f))
  wanted = expected(length, packing, window, dtype)
  return rows.worst(found(*arrays(length, dtype)), wanted)


@pytest.mark.parametrize('draw', quick.only(DRAWS, *DRAWS[1:6]), ids=str)
@pytest.mark.parametrize('mode', MODES)
def test_equals_one_device(mode, draw, monkeypatch):
  monkeypatch.setattr(blocks, '_ROWS', draw[-1])
  assert error(mode, draw) <= rows.TOLERANCE


@pytest.mark.parametrize('mode', MODES)
def test_without_segments_and_with_a_traced_window(mode):
  draw = (4, 32, 'one', 9, 64)
  worst = error(mode, draw, segmented=False, kind=jnp.int32)
  assert worst <= rows.TOLERANCE


@pytest.mark.parametrize('mode', MODES)
def test_bfloat16_is_as_close_as_bfloat16_is(mode):
  assert error(mode, DRAWS[3], jnp.bfloat16) <= 5 * close.BFLOAT16


def test_rows_may_be_divided_over_another_axis_and_made_anew():
  """With explicit axes, in a scan of layers, under remat."""
  mesh = jax.make_mesh(
    (2, 4),
    ('replica', 'context'),
    axis_types=(jax.sharding.AxisType.Explicit,) * 2,
  )
  q, k, v, d_out = arrays(32)
  segments = zigzag_lib.divide(rows.documents('many', 32), 4)
  both = P('replica', 'context')

  def local(attention, q, k, v, segments):
    layer = jax.checkpoint(
      lambda x, window: (attention(x, k, v, segments, window), None)
    )
    return jax.lax.scan(layer, q, jnp.asarray([99, 5]))[0]

  def on_mesh(mode):
    attention = lambda q, k, v, segments, window: mode.attention(
      q, k, v, axis='context', segments_BS=segments, window=window
    )
    f = jax.shard_map(
      functools.partial(local, attention),
      in_specs=(both, both, both, P('replica')),
      out_specs=both,
    )
    put = lambda a: jax.device_put(zigzag_lib.divide(a, 4), both)
    out = jax.jit(
      lambda q, k, v, s, d: value_and_gradient(
        lambda *args: f(*args, s), q, k, v, d
      )
    )(
      put(q), put(k), put(v), jax.device_put(segments, P('replica')), put(d_out)
    )
    return rows.restore(jax.tree.map(np.asarray, out), 4)

  natural = rows.documents('many', 32)
  whole = lambda q, k, v, s, window: reference.attention(
    q, k, v, q_segments_BL=s, k_segments_BS=s, window=window
  )
  expected = jax.jit(
    functools.partial(
      value_and_gradient, lambda *qkv: local(whole, *qkv, natural)
    )
  )(q, k, v, d_out)
  with jax.set_mesh(mesh):
    for mode in MODES.values():
      assert rows.worst(on_mesh(mode), expected) <= rows.TOLERANCE


def zigzag_as_contiguous(monkeypatch):
  wrong = types.SimpleNamespace(order=lambda length, n: np.arange(length))
  monkeypatch.setattr(blocks, 'zigzag', wrong)


def missing_part(monkeypatch):
  rotate = ring_attention._rotate

  def mutant(use, *args):
    turns = iter(range(4))
    return rotate(
      lambda state, *part: state if next(turns) == 3 else use(state, *part),
      *args,
    )

  monkeypatch.setattr(ring_attention, '_rotate', mutant)


def missing_block(monkeypatch):
  near = blocks._unless_hidden

  def mutant(f, at, key_at, *args):
    # Queries of other blocks do not see the first block of keys.
    first = (key_at['start'] == 0) & (at['start'] > 0)
    further = {**key_at, 'start': key_at['start'] + 99 * first}
    return near(f, at, further, *args)

  monkeypatch.setattr(blocks, '_unless_hidden', mutant)


def wrong_way(monkeypatch):
  back = lambda x, axis: jax.lax.ppermute(
    x, axis, [((i + 1) % 4, i) for i in range(4)]
  )
  monkeypatch.setattr(ring_attention, '_pass_on', back)


def lost_gradient(monkeypatch):
  scatter = lambda x, axis, tiled: jax.lax.dynamic_slice_in_dim(
    x, jax.lax.axis_index(axis) * (x.shape[0] // 4), x.shape[0] // 4
  )
  monkeypatch.setattr(jax.lax, 'psum_scatter', scatter)


MUTANTS = [
  ('gather', zigzag_as_contiguous),
  ('ring', zigzag_as_contiguous),
  ('gather', missing_block),
  ('ring', missing_block),
  ('ring', missing_part),
  ('ring', wrong_way),
  ('gather', lost_gradient),
]


@pytest.mark.parametrize(
  'case',
  quick.only(MUTANTS, MUTANTS[0], MUTANTS[3], MUTANTS[5]),
  ids=lambda case: f'{case[0]}-{case[1].__name__}',
)
def test_mutant_is_noticed(case, monkeypatch):
  mode, mutant = case
  mutant(monkeypatch)
  assert error(mode, (4, 32, 'one', None, 64)) > 0.01


@pytest.mark.parametrize('mode', MODES)
def test_forgotten_segments_are_noticed(mode):
  assert error(mode, DRAWS[3], segmented=False) > 0.01


def collectives(f, *args):
  hlo = jax.jit(f).lower(*args).compile().as_text()
  names = r' (all-\w+(?:-\w+)?|collective-permute|reduce-scatter)(?:-start)?\('
  found = re.findall(names, hlo)
  return {name: found.count(name) for name in found}


@pytest.mark.parametrize('n', quick.only((2, 4, 8), 4))
def test_collectives(n):
  """One rotation is n - 1 permutes; backward also the sums rotate."""
  q, k, v, d_out = arrays(32)
  specs = (rows.CHUNKED,) * 3

  def programs(mode):
    local = functools.partial(mode.attention, axis='context')
    forward = rows.on_devices(local, n, specs, rows.CHUNKED)
    both = rows.on_devices(
      lambda *args: value_and_gradient(local, *args),
      n,
      (*specs, rows.CHUNKED),
      rows.CHUNKED,
    )
    return collectives(forward, q, k, v), collectives(both, q, k, v, d_out)

  forward, both = programs(gather)
  assert forward == {'all-gather': 1}
  # XLA may take the two gathers for one.
  assert both.pop('all-gather') in (1, 2)
  assert both == {'reduce-scatter': 1}
  forward, both = programs(ring_attention)
  assert forward == {'collective-permute': n - 1}
  assert both.pop('collective-permute') in (2 * (n - 1), 3 * (n - 1))
  assert not both


def test_the_next_keys_are_asked_for_before_the_present_ones_are_used():
  local = functools.partial(ring_attention.attention, axis='context')
  run = rows.on_devices(local, 4, (rows.CHUNKED,) * 3, rows.CHUNKED)
  jaxpr = str(jax.make_jaxpr(run)(*arrays(32)[:3]))
  order = re.findall(r'= (ppermute|scan)\[', jaxpr)
  # Two loops, one in the other, use the keys of one turn.
  assert order == ['ppermute', 'scan', 'scan'] * 3 + ['scan', 'scan']


def test_heads_that_do_not_divide_are_named():
  q, k, v, _ = arrays(16)
  with pytest.raises(ValueError, match=r'heads of q \(2, 8, 3, 8\)'):
    local = functools.partial(gather.attention, axis='context')
    rows.on_devices(local, 2, (rows.CHUNKED,) * 3, rows.CHUNKED)(
      q[:, :, :3], k, v
    )
