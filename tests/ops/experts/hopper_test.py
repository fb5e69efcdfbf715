# SPDX-License-Identifier: Apache-2.0
"""The products for Hopper GPUs: interpreted where jax can, lowered where not.

jax 0.10 interprets no transposed operands. What those products mean is what
the gradients in `contract_test` are made of; the kernels are compared with it
where there is a Hopper GPU.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ops
from ops import dispatch
from ops.experts import hopper, reference, sink
from ops.experts.hopper import places, products
from tests.support import gpus, quick
from tests.support.ops import interpreter, plain_products

EXPERT = jnp.asarray([0, 2, 2, 2], jnp.int32)
FIRST = jnp.asarray([0, 1, 1, 3], jnp.int32)  # The last block is nobody's.


@pytest.fixture
def interpreted(monkeypatch):
  """Kernels run in Python: threads, barriers, copies and all, without races."""
  with interpreter.products(monkeypatch):
    yield


def _inputs(depth, columns):
  rng = np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.bfloat16)
  rows = EXPERT.size * products.ROWS
  return draw(rows, depth), draw(3, depth, columns) * depth**-0.5


def _differ(found, wanted):
  found, wanted = (
    np.asarray(x, np.float32)[: 3 * products.ROWS] for x in (found, wanted)
  )
  return np.abs(found - wanted).max() > 0.03


@pytest.mark.parametrize('columns', quick.only((256, 512), 256))
def test_matmul_interpreted(interpreted, columns):
  x, w = _inputs(256, columns)
  found = products.matmul(x, w, EXPERT, FIRST)
  assert not _differ(found, plain_products.matmul(x, w, EXPERT, FIRST))
  wrong = plain_products.matmul(x, w, EXPERT[::-1], FIRST)
  assert _differ(found, wrong)


@pytest.mark.parametrize('save', quick.only((False, True), True))
def test_up_interpreted(interpreted, save):
  x, w = _inputs(256, 512)
  found = products.up(x, w, EXPERT, FIRST, save=save)
  wanted = plain_products.up(x, w, EXPERT, FIRST, save=save)
  assert len(found) == len(wanted) == 1 + save
  assert not any(map(_differ, found, wanted))
  swapped = jnp.roll(w, 256, axis=2)  # Up first.
  wrong = plain_products.up(x, swapped, EXPERT, FIRST, save=save)
  assert all(map(_differ, found, wrong))


@interpreter.needs_transposes
def test_transposed_matmul_interpreted(interpreted):
  x, w = _inputs(256, 512)
  w = w.swapaxes(1, 2)
  found = products.matmul(x, w, EXPERT, FIRST, transposed=True)
  wanted = plain_products.matmul(x, w, EXPERT, FIRST, transposed=True)
  assert not _differ(found, wanted)
  assert _differ(
    found, plain_products.matmul(x, w[::-1], EXPERT, FIRST, transposed=True)
  )


@interpreter.needs_transposes
def test_d_up_interpreted(interpreted):
  dy, w = _inputs(256, 512)
  w = w.swapaxes(1, 2)
  rng = np.random.default_rng(1)
  slopes = jnp.asarray(rng.standard_normal((len(dy), 1024)), jnp.bfloat16)
  found = products.d_up(dy, w, slopes, EXPERT, FIRST)
  wanted = plain_products.d_up(dy, w, slopes, EXPERT, FIRST)
  assert not _differ(found, wanted)
  swapped = plain_products.d_up(dy, w, slopes[:, ::-1], EXPERT, FIRST)
  assert _differ(found, swapped)


@interpreter.needs_transposes
def test_d_weights_interpreted(interpreted):
  x, dy = _inputs(256, 256)[0], _inputs(512, 256)[0]
  first = jnp.asarray([0, 1, 2, 4], jnp.int32)  # Each has a block at least.
  found = products.d_weights(x, dy, first)
  scale = np.sqrt(2 * products.ROWS)
  wanted = plain_products.d_weights(x, dy, first)
  assert not _differ(found / scale, wanted / scale)
  other = jnp.asarray([0, 1, 3, 4], jnp.int32)
  assert _differ(found / scale, plain_products.d_weights(x, dy, other) / scale)


def _merged(experts, x, weight, expert, *matrices):
  """Both results of the merge behind the experts."""
  *vectors, stream = np.random.default_rng(2).standard_normal((6, *x.shape))
  made = experts(x, expert, *matrices)
  if isinstance(made, jax.Array):
    branch, taken = weight[:, None] * made, ()
  else:
    branch, taken = made.rows, (weight, made.row_T, made.spare_Q)
  return ops.residual_rms_norm(
    *(branch, jnp.float32(stream), *(jnp.float32(v[0]) for v in vectors)),
    *taken,
    eps=1e-5,
    dtype=x.dtype,
  )


def _value_and_gradients(experts, expert):
  rng = np.random.default_rng(0)
  draw = lambda *s: jnp.asarray(rng.standard_normal(s), jnp.float32)
  x, weight = draw(expert.size, 24) * 24**-0.5, draw(expert.size)
  given = x, weight, draw(4, 24, 80), draw(4, 40, 24)

  def run(x, weight, *matrices):
    # As the kernels round, or rather do not: these are what they mean.
    return _merged(experts, x, weight, expert, *matrices)

  @jax.jit
  def both(*given):
    out, vjp = jax.vjp(run, *given)
    return *out, *vjp(jax.tree.map(jnp.cos, out))

  return both(*given)


def _no_spare_rows(monkeypatch):
  find = places.find
  monkeypatch.setattr(
    places,
    'find',
    lambda *args: (found := find(*args))._replace(
      spare_Q=jnp.full_like(found.spare_Q, 128 * found.expert_B.size)
    ),
  )


def _another_row(monkeypatch):
  find = places.find
  monkeypatch.setattr(
    places,
    'find',
    lambda *args: (found := find(*args))._replace(
      row_T=jnp.roll(found.row_T, 1)
    ),
  )


@pytest.mark.parametrize('mistake', [None, _no_spare_rows, _another_row])
def test_results_are_merged_from_where_experts_have_them(
  plain, monkeypatch, mistake
):
  monkeypatch.setattr(hopper, 'unsupported', lambda *_: None)
  expert = jnp.asarray(np.random.default_rng(1).integers(0, 5, 77), jnp.int32)
  wanted = _value_and_gradients(reference.expert_mlp, expert)
  if mistake:
    mistake(monkeypatch)
  with dispatch.use(experts='hopper', residual_rms_norm='triton'):
    found = _value_and_gradients(hopper.expert_mlp_in_place, expert)
  errors = [
    np.abs(a - b).max() / np.abs(b).max()
    for a, b in zip(found, wanted, strict=True)
  ]
  right = all(error < 1e-4 for error in errors)  # Not if one is no number.
  assert right == (mistake is None)


def test_a_sink_gets_the_same_gradients_of_results_in_place(plain, monkeypatch):
  monkeypatch.setattr(hopper, 'unsupported', lambda *_: None)
  put = lambda x, dy, first, stack, at: sink.put(
    stack, at, products.d_weights(x, dy, first)
  )
  monkeypatch.setattr(products, 'd_weights_into', put)
  rng = np.random.default_rng(0)
  draw = lambda *s: jnp.asarray(rng.standard_normal(s), jnp.float32)
  width = products.COLUMNS  # Nothing is added to it.
  x, gate_up = draw(77, width), draw(4, width, 2 * width)
  down, expert = draw(4, width, width), jnp.asarray(rng.integers(0, 5, 77))

  def value(x, gate_up, down, stacks):
    place = stacks and sink.Sink(stacks, jnp.asarray([1, 0], jnp.int32))
    inputs = x, expert.astype(jnp.int32), gate_up, down
    made = hopper.expert_mlp_in_place(*inputs, sink=place)
    rows = made.rows.at[made.row_T].get(mode='fill', fill_value=0)
    if stacks is None:
      return jnp.sum(rows**2)
    empty = [jnp.full_like(a, jnp.nan) for a in stacks]
    return jnp.sum(sink.begin(rows, made.stacks, sink.Stacks(*empty)) ** 2)

  dx, *wanted = jax.jit(jax.grad(value, (0, 1, 2)))(x, gate_up, down, None)
  stacks = sink.Stacks(*(jnp.zeros((2, *a.shape)) for a in (gate_up, down)))
  again, filled = jax.jit(jax.grad(value, (0, 3)))(x, gate_up, down, stacks)
  np.testing.assert_array_equal(again, dx)
  for stack, gradient in zip(filled, wanted, strict=True):
    np.testing.assert_array_equal(stack[1], gradient)
    assert np.isnan(stack[0]).all()  # Of another layer.


def test_value_and_gradients_lower():
  shape = lambda *s: jax.ShapeDtypeStruct(s, jnp.bfloat16)
  args = (
    shape(16_384, 2048),
    jax.ShapeDtypeStruct((16_384,), jnp.int32),
    shape(16, 2048, 4096),
    shape(16, 2048, 2048),
  )

  def run(x, expert, gate_up, down):
    y, vjp = jax.vjp(
      lambda *a: hopper.expert_mlp(a[0], expert, *a[1:]), x, gate_up, down
    )
    return vjp(y)

  lowered = gpus.lower(jax.jit(run).trace(*args), 'cuda')
  # Two forward, four of five products backward; one is twice.
  assert lowered.as_text().count('mosaic_gpu') >= 6
