# SPDX-License-Identifier: Apache-2.0
"""Attention for Hopper GPUs: interpreted where jax can, lowered where not.

jax 0.10 interprets no transposed operands. The kernels are compared with
float64 in `contract_test` where there is a Hopper GPU.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.pallas.mosaic_gpu import primitives
from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks

from ops.attention import cases, hopper, ranges, reference
from ops.attention.hopper import shared
from tests.support import gpus
from tests.support.ops import interpreter


@pytest.fixture
def interpreted(monkeypatch):
  """Kernels run in Python: threads, barriers, copies and all, without races."""
  monkeypatch.setattr(
    gpu_callbacks,
    'wgmma',
    functools.partial(_wgmma, gpu_callbacks.wgmma),
  )
  monkeypatch.setattr(shared, 'store', _store)
  with interpreter.interpreted():
    yield
  interpreter.assert_no_races()


def _store(sums_ref, value):
  """A product with a float32 operand: `_wgmma` sets the sums to it."""
  trees = dict.fromkeys([f'{x}_transforms_tree' for x in ('acc', 'a', 'b')])
  primitives.wgmma_ref_p.bind(sums_ref, value, sums_ref, **trees)


def _wgmma(interpret, *, a_allocation_key_as_array, **options):
  """Also of a left operand in registers, which jax does not interpret."""
  a = np.asarray(a_allocation_key_as_array)
  if a.ndim != 2:
    return interpret(a_allocation_key_as_array=a, **options)
  memory = gpu_callbacks._get_shared_memory()
  key_of = gpu_callbacks.HostAllocationKey.from_array
  acc_key = key_of(options['acc_allocation_key_as_array'])
  b_key = key_of(options['b_allocation_key_as_array'])
  transforms = gpu_callbacks._remove_noop_transforms(options['b_transforms'])
  transforms = jax.tree.map(int, transforms)
  thread = options['thread']
  read = lambda key, t: memory.get_buffer_content(
    key, memory.access(key, t), thread
  )[0]
  acc, b = read(acc_key, ()), read(b_key, transforms)
  acc = a if a.dtype == acc.dtype else acc + np.matmul(a, b, dtype=acc.dtype)
  memory.store_buffer_content(acc_key, memory.access(acc_key, ()), acc, thread)
  return options['token']


def _inputs(length, segments=None, window=None, channels=128):
  rng = np.random.default_rng(0)
  draw = lambda heads: jnp.asarray(
    rng.standard_normal((2, length, heads, channels)), jnp.bfloat16
  )
  options = {'window': None if window is None else jnp.int32(window)}
  if segments is not None:
    rows = jnp.broadcast_to(segments, (2, length))
    options |= {'q_segments_BL': rows, 'k_segments_BS': rows}
  return (draw(2), draw(1), draw(1), draw(2)), options


def _value_and_gradients(run, inputs, options):
  q, k, v, d_out = inputs
  out, vjp = jax.vjp(lambda *qkv: run(*qkv, **options), q, k, v)
  return out, *vjp(d_out.astype(out.dtype))


def _wanted(inputs, options):
  inputs = [x.astype(jnp.float32) for x in inputs]
  return _value_and_gradients(reference.attention, inputs, options)


def _differ(found, wanted):
  differences = [
    np.abs(np.asarray(a, np.float32) - np.asarray(b, np.float32)).max()
    / np.abs(np.asarray(b, np.float32)).max()
    for a, b in zip(found, wanted, strict=True)
  ]
  return [x > 0.02 for x in differences]


CASES = {
  'causal': (256, None, None),
  'documents': (256, cases.documents(100, 1, 60, 95), None),
  'numbers_come_again': (256, np.arange(256)[None] // 40 % 2, None),
  'window_and_a_rest': (200, None, 30),
}


@interpreter.needs_transposes
@pytest.mark.parametrize(('most', 'enough'), [(0, 1), (2**30, 512)])
@pytest.mark.parametrize(
  ('name', 'channels'), [*((n, 128) for n in CASES), ('documents', 64)]
)
def test_value_and_gradients_interpreted(
  interpreted, monkeypatch, name, channels, most, enough
):
  monkeypatch.setattr(hopper, '_MOST_SAVED', most)
  monkeypatch.setattr(hopper, '_ENOUGH', enough)
  inputs, options = _inputs(*CASES[name], channels)
  found = _value_and_gradients(hopper.attention, inputs, options)
  assert not any(_differ(found, _wanted(inputs, options)))
  # One key more or less, and values of other rows.
  length, segments, window = CASES[name]
  segments = cases.documents(99, length - 99) if segments is None else None
  other = _inputs(length, segments, window, channels)
  assert all(_differ(found, _wanted(*other)))


@pytest.mark.parametrize('channels', shared.CHANNELS)
@pytest.mark.parametrize('name', CASES)
def test_value_and_gradients_lower(name, channels):
  inputs, options = _inputs(*CASES[name], channels)

  def run(inputs, options):
    return _value_and_gradients(hopper.attention, inputs, options)

  lowered = gpus.lower(jax.jit(run).trace(inputs, options), 'cuda')
  for kernel in ('forward', 'of_queries', 'of_keys'):
    assert f'attention_{kernel}' in lowered.as_text()


def test_a_program_has_many_heads_if_programs_are_left():
  shape = lambda *s: jax.ShapeDtypeStruct(s, jnp.bfloat16)
  turns = lambda batch, length: hopper._turns(
    shape(batch, length, 8, 128), shape(batch, length, 2, 128)
  )
  assert turns(4, 4096) == 2
  assert turns(2, 4096) == 1
  assert turns(8, 4096) == 4
  assert turns(1, 32_768) == 4


def _bounds(length, segments):
  return ranges.ranges(
    length, shared.ROWS, shared.ROWS, segments, segments, None
  )


def test_the_longest_blocks_come_first():
  order = hopper._longest(_bounds(512, None)[0], 2)
  np.testing.assert_array_equal(order, [3, 7, 2, 6, 1, 5, 0, 4])
  first = jnp.asarray(cases.documents(1, 383, 128), jnp.int32)
  order = hopper._longest(_bounds(512, first)[0], 1)
  np.testing.assert_array_equal(order, [2, 1, 0, 3])


def test_ranges_of_keys_hold_those_of_queries():
  segments = jnp.asarray(np.arange(1024)[None] // 50 % 7, jnp.int32)
  apart = jnp.asarray([[3] * 128 + [1] * 128 + [2] * 128 + [3] * 128])
  for rows in (segments, apart.astype(jnp.int32)):
    given = _bounds(rows.shape[1], rows)
    (queries,), (keys,) = hopper._covering(*given)
    held = lambda ends, i, n: ends[i, 0] <= n < ends[i, 3]
    blocks = range(len(queries))
    assert all(queries[:, 3] > queries[:, 0])
    assert all(n <= i for i in blocks for n in range(*queries[i, [0, 3]]))
    assert all(n <= i for n in blocks for i in range(*keys[n, [0, 3]]))
    pairs = [(i, n) for i in blocks for n in blocks if held(queries, i, n)]
    assert all(held(keys, n, i) for i, n in pairs)
  # As they are given, they do not.
  (queries,), (keys,) = given
  assert held(queries, 3, 1) and not held(keys, 1, 3)


@pytest.mark.parametrize('channels', [64, 128])
def test_auto_takes_it_where_gradients_of_scores_are_kept(channels):
  shape = lambda length: jax.ShapeDtypeStruct(
    (2, length, 2, channels), 'bfloat16'
  )
  assert hopper.slower(shape(256)) is None
  assert 'computed anew' in hopper.slower(shape(2**17))
