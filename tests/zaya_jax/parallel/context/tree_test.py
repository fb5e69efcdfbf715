# SPDX-License-Identifier: Apache-2.0
"""Tree attention is attention, and says what it says with three collectives."""

import collections
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from tests.support import close, context_cases
from zaya_jax.parallel.context import tree

DEVICES = (2, 4, 8)
# Of the largest element, as in tests/support/close.py, for sums over 64 keys.
TOLERANCE = 1e-6

run = functools.cache(functools.partial(context_cases.sharded, tree.attention))


def error(attention, case):
  length, offset, window, padding = context_cases.CASES[case]
  given = (*context_cases.arrays(length, padding), offset, window)
  found, expected = (
    attention(*given),
    np.asarray(context_cases.expected(*given)),
  )
  return np.abs(np.asarray(found) - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize('devices', DEVICES)
@pytest.mark.parametrize('case', context_cases.CASES)
def test_equals_attention_on_one_device(case, devices):
  assert error(run(devices), case) <= TOLERANCE


def test_sequences_may_be_divided_over_another_axis():
  mesh = jax.make_mesh(
    (2, 4),
    ('replica', 'context'),
    axis_types=(jax.sharding.AxisType.Explicit,) * 2,
  )
  rows, mask = P('replica', None, 'context'), P('replica', 'context')
  specs = (P('replica'), rows, rows, mask)
  given = context_cases.arrays(3, (0, 11))
  with jax.set_mesh(mesh):
    attention = jax.shard_map(
      lambda q, k, v, valid: tree.attention(
        q, k, v, axis='context', offset=40, valid_BS=valid
      ),
      in_specs=specs,
      out_specs=P('replica'),
    )
    found = jax.jit(attention)(
      *(jax.device_put(a, s) for a, s in zip(given, specs, strict=True))
    )
  expected = context_cases.expected(*given, 40, context_cases.ALL)
  close.assert_close(np.asarray(found), expected, TOLERANCE)


def test_long_caches_are_read_in_parts(monkeypatch):
  monkeypatch.setattr(tree, '_PART', 4)
  attention = context_cases.sharded(tree.attention, 4)
  assert error(attention, 'padding_and_window') <= TOLERANCE


def test_bfloat16_is_as_close_as_bfloat16_is():
  given = (
    *context_cases.arrays(5, (0, 11), jnp.bfloat16),
    40,
    context_cases.ALL,
  )
  found = run(4)(*given)
  assert found.dtype == jnp.bfloat16
  close.assert_close(found, context_cases.expected(*given), close.BFLOAT16)


def test_great_scores_do_not_overflow():
  given = (*context_cases.arrays(3, scale=300.0), 60, context_cases.ALL)
  # A score of 1,000 is rounded by 2^-14, and so is the log of its weight.
  close.assert_close(run(8)(*given), context_cases.expected(*given), 2e-4)


def test_query_without_any_key_gets_zeros():
  q, k, v, valid = context_cases.arrays(1)
  found = run(4)(q, k, v, valid.at[1].set(False), 40, context_cases.ALL)
  np.testing.assert_array_equal(found[1], 0)
  expected = context_cases.expected(q, k, v, valid, 40, context_cases.ALL)
  close.assert_close(found[0], expected[0], TOLERANCE)


def test_every_device_has_the_same_bits():
  attention = lambda q, k, v: tree.attention(
    q, k, v, axis='context', offset=63, window=None
  )[None]
  rows = P(None, None, 'context')
  stacked = np.asarray(
    context_cases.on_devices(
      attention, 8, (P(), rows, rows), P('context'), check_vma=False
    )(*context_cases.arrays(1)[:3])
  )
  assert stacked.shape == (
    8,
    context_cases.B,
    1,
    context_cases.H,
    context_cases.C,
  )
  assert (stacked == stacked[:1]).all()


def without_max(monkeypatch):
  monkeypatch.setattr(jax.lax, 'pmax', lambda x, axis: x)


def without_sum(number, monkeypatch):
  psum, calls = jax.lax.psum, iter(range(2))
  monkeypatch.setattr(
    jax.lax,
    'psum',
    lambda x, axis: x if next(calls) == number else psum(x, axis),
  )


def with_wrong_offset(monkeypatch):
  index = jax.lax.axis_index
  monkeypatch.setattr(jax.lax, 'axis_index', lambda axis: index(axis) * 0)


MUTANTS = {
  'max': without_max,
  'sum_of_outputs': functools.partial(without_sum, 0),
  'sum_of_weights': functools.partial(without_sum, 1),
  'offset': with_wrong_offset,
}


@pytest.mark.parametrize('mutant', MUTANTS)
def test_mutant_is_noticed(mutant, monkeypatch):
  MUTANTS[mutant](monkeypatch)
  attention = context_cases.sharded(tree.attention, 4, check_vma=False)
  assert not error(attention, 'queries_on_both_sides_of_a_border') < 0.01


def test_missing_sum_does_not_even_trace(monkeypatch):
  without_sum(1, monkeypatch)
  with pytest.raises(ValueError, match='replicated|varying|vary'):
    context_cases.sharded(tree.attention, 4).lower(
      *context_cases.arrays(1), 5, 7
    )


def test_program_has_one_max_and_two_sums():
  jaxpr = jax.make_jaxpr(run(4))(*context_cases.arrays(1), 5, 7)
  names = collections.Counter(re.findall(r' = (\w+)', str(jaxpr)))
  assert names['pmax'] == 1
  assert names['psum'] + names['psum_invariant'] == 2
  others = {'all_gather', 'ppermute', 'all_to_all', 'psum_scatter', 'pmin'}
  assert not others & set(names)


def reductions(hlo):
  """How many all-reduces of each kind; other collectives by their name."""
  root = re.compile(
    r'^%?(\S+) \(.*?\{\n(?:(?!\}).*\n)*?\s*ROOT .*? (\w+)\(', re.M
  )
  bodies = dict(root.findall(hlo))
  calls = re.findall(r' all-reduce(?:-start)?\(.*?to_apply=%?([\w.-]+)', hlo)
  names = r' (all-gather|collective-permute|all-to-all|reduce-scatter)'
  return collections.Counter(
    [bodies[name] for name in calls] + re.findall(names, hlo)
  )


@pytest.mark.parametrize('devices', DEVICES)
def test_compiled_program_has_no_other_collective(devices):
  lowered = run(devices).lower(*context_cases.arrays(1), 5, 7)
  found = reductions(lowered.compile().as_text())
  assert set(found) == {'maximum', 'add'}
  assert found['maximum'] == 1
  assert 1 <= found['add'] <= 2  # XLA may make one of both.


@functools.cache
def writer(devices, dim=2):
  spec = P(*[None] * dim, 'context')
  return context_cases.on_devices(
    lambda old, new, offset: tree.write(
      old, new, offset, axis='context', dim=dim
    ),
    devices,
    (spec, P(), P()),
    spec,
  )


# Of 8 rows a device; 12 rows cover a shard and parts of others.
@pytest.mark.parametrize('length', [1, 3, 8, 12])
def test_rows_are_written_where_they_belong(length):
  keys = jax.random.split(jax.random.key(0))
  old = jax.random.normal(keys[0], (2, 1, 64, 3))
  new = jax.random.normal(keys[1], (2, 1, length, 3))
  for offset in (0, 5, 7, 8, 23, 64 - length):
    expected = np.asarray(old).copy()
    expected[:, :, offset : offset + length] = new
    np.testing.assert_array_equal(writer(8)(old, new, offset), expected)


def test_rows_beyond_the_end_are_dropped():
  old, new = jnp.zeros((2, 64), bool), jnp.ones((2, 3), bool)
  found = np.asarray(writer(4, dim=1)(old, new, 62))
  assert found[:, 62:].all() and found.sum() == 2 * 2


def test_writing_communicates_nothing_and_takes_the_type_of_the_cache():
  old, new = jnp.zeros((1, 2, 64, 4), jnp.bfloat16), jnp.ones((1, 2, 2, 4))
  assert writer(4)(old, new, 15).dtype == jnp.bfloat16
  hlo = writer(4).lower(old, new, 15).compile().as_text()
  assert not reductions(hlo)


def test_tokens_one_by_one_equal_the_whole_sequence():
  q, k, v, valid = context_cases.arrays(context_cases.ROWS)
  empty = jnp.zeros_like(k)

  def decode(k, v, q, new_k, new_v):
    def token(cache, t):
      row = lambda x, dim: jax.lax.dynamic_slice_in_dim(x, t, 1, dim)
      write = lambda old, new: tree.write(old, row(new, 2), t, axis='context')
      cache = write(cache[0], new_k), write(cache[1], new_v)
      out = tree.attention(
        row(q, 1), *cache, axis='context', offset=t, window=10
      )
      return cache, out[:, 0]

    return jax.lax.scan(token, (k, v), jnp.arange(context_cases.ROWS))[1]

  rows = P(None, None, 'context')
  run = context_cases.on_devices(decode, 4, (rows, rows, P(), P(), P()), P())
  found = run(empty, empty, q, k, v).swapaxes(0, 1)
  expected = context_cases.expected(q, k, v, valid, 0, 10)
  close.assert_close(found, expected, TOLERANCE)


def test_shapes_that_do_not_fit_are_named():
  q, k, v, _ = context_cases.arrays(1)
  with pytest.raises(ValueError, match=r'heads of q \(2, 1, 7, 16\)'):
    tree.partial(q[:, :, :7], k, v, 0, None, None)
