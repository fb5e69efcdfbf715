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

from ops import dispatch
from ops.cross_entropy.hopper import exponentials as cross_entropy
from ops.experts import hopper
from ops.experts.hopper import places, products
from ops.hopper import persistent, warp_groups
from ops.newton_schulz.hopper import symmetric as newton_schulz
from tests.ops import interpreter, plain_products
from tests.support import gpus

EXPERT = jnp.asarray([0, 2, 2, 2], jnp.int32)
FIRST = jnp.asarray([0, 1, 1, 3], jnp.int32)  # The last block is nobody's.


def _inputs(depth, columns):
  rng = np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.bfloat16)
  rows = EXPERT.size * products.ROWS
  return draw(rows, depth), draw(3, depth, columns) * depth**-0.5


@pytest.fixture
def interpreted(monkeypatch, request):
  """Kernels run in Python: threads, barriers, copies and all, without races."""
  monkeypatch.setattr(persistent, 'processors', lambda: 2)
  monkeypatch.setattr(persistent, '_CLUSTERS', False)
  # Of symmetric products each second store is none, which jax takes for less
  # than a group of copies: it sees races that a GPU has not.
  detect_races = 'symmetric' not in request.node.name
  with interpreter.interpreted(detect_races=detect_races):
    yield
  if detect_races:
    interpreter.assert_no_races()


def _differ(found, wanted):
  found, wanted = (
    np.asarray(x, np.float32)[: 3 * products.ROWS] for x in (found, wanted)
  )
  return np.abs(found - wanted).max() > 0.03


@pytest.mark.parametrize(
  'columns', [256, pytest.param(512, marks=pytest.mark.long)]
)
def test_matmul_interpreted(interpreted, columns):
  x, w = _inputs(256, columns)
  found = products.matmul(x, w, EXPERT, FIRST)
  assert not _differ(found, plain_products.matmul(x, w, EXPERT, FIRST))
  wrong = plain_products.matmul(x, w, EXPERT[::-1], FIRST)
  assert _differ(found, wrong)


@pytest.mark.parametrize('save', [False, True])
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


@interpreter.needs_transposes
@pytest.mark.parametrize('n', [512, 1024])  # Without squares in fours and with.
@pytest.mark.parametrize(
  'options', [{}, {'alpha': 2.0, 'beta': -4.8, 'diagonal': 3.4}]
)
def test_symmetric_matmul_interpreted(interpreted, options, n):
  rng = np.random.default_rng(0)
  a = jnp.asarray(rng.standard_normal((2, n, n)) / n**0.5, jnp.bfloat16)
  a = jnp.tril(a) + jnp.tril(a, -1).mT
  arrays = (a, a, a, jnp.asarray([1.5, 0.25])) if options else (a, a)
  found = newton_schulz.symmetric_matmul(*arrays, **options)
  wanted = plain_products.symmetric_matmul(*arrays, **options)
  assert not _differ(found.reshape(-1, n), wanted.reshape(-1, n))
  np.testing.assert_array_equal(found, found.mT)
  other = plain_products.symmetric_matmul(*arrays, **{**options, 'diagonal': 1})
  assert _differ(found.reshape(-1, n), other.reshape(-1, n))
  if options:
    other = plain_products.symmetric_matmul(*arrays[:3], **options)
    assert _differ(found[0], other[0]) and _differ(found[1], other[1])


def _chunk(rng):
  x = jnp.asarray(rng.standard_normal((512, 128)) / 8, jnp.bfloat16)
  head = jnp.asarray(rng.standard_normal((320, 128)), jnp.bfloat16)
  shift = jnp.asarray(rng.standard_normal(512), jnp.float32)
  return x, head, shift.at[5].set(-100)  # Whose logits are too far from it.


@interpreter.needs_transposes
@pytest.mark.parametrize('save', [False, True])
def test_exponentials_interpreted(interpreted, save):
  x, head, shift = _chunk(np.random.default_rng(0))
  e, totals = cross_entropy.exponentials(x, head, shift, save=save)
  wanted, wanted_totals = plain_products.exponentials(x, head, shift, save=save)
  if save:
    np.testing.assert_allclose(*_float32(e, wanted), rtol=0.01)
  np.testing.assert_allclose(totals, wanted_totals, rtol=1e-5)
  head = jnp.pad(head, [(0, 64), (0, 0)])
  _, more = plain_products.exponentials(x, head, shift, save=False)
  assert (np.abs(totals - more) > 1e-5 * more)[np.arange(512) != 5].all()


def test_exponentials_lower():
  inputs = _chunk(np.random.default_rng(0))
  run = jax.jit(lambda *args: cross_entropy.exponentials(*args, save=True))
  lowered = gpus.lower(run.trace(*inputs), 'cuda')
  assert 'mosaic_gpu' in lowered.as_text()


def _float32(*arrays):
  return [np.asarray(a, np.float32) for a in arrays]


@pytest.mark.parametrize('added', [False, True])
def test_symmetric_matmul_lowers(added):
  def run(a):
    c = a if added else None
    scale = jnp.ones(len(a)) if added else None
    return newton_schulz.symmetric_matmul(
      a, a, c, scale, beta=2.0, diagonal=3.0
    )

  a = jax.ShapeDtypeStruct((2, 1024, 1024), jnp.bfloat16)
  lowered = gpus.lower(jax.jit(run).trace(a), 'cuda')
  assert 'mosaic_gpu' in lowered.as_text()


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


@pytest.mark.parametrize(
  ('capability', 'reason'),
  [('8.0', 'needs compute capability 9'), ('10.0', 'this one has 10.0')],
)
def test_other_gpus_are_refused_by_name(monkeypatch, capability, reason):
  monkeypatch.setattr(dispatch, 'platform', lambda: 'cuda')
  device = type('Device', (), {'compute_capability': capability})
  monkeypatch.setattr(jax, 'devices', lambda: [device])
  assert reason in warp_groups.unavailable()


def test_a_cpu_is_refused():
  assert (
    warp_groups.unavailable() == 'it is made of instructions of Hopper GPUs'
  )


@pytest.mark.parametrize('tokens', [1, 127, 128, 1000, 2500])
def test_places_are_a_stable_sort_into_blocks(tokens):
  rng = np.random.default_rng(tokens)
  expert = rng.integers(0, 6, tokens).astype(np.int32)  # 5 has no expert.
  found = places.find(jnp.asarray(expert), 5, products.ROWS)
  token_P, row_T, expert_B, first = map(np.asarray, found)
  assert first[0] == 0 and len(first) == 6
  assert len(token_P) == len(expert_B) * products.ROWS
  for e in range(5):
    rows = slice(first[e] * products.ROWS, first[e + 1] * products.ROWS)
    mine = np.flatnonzero(expert == e)
    np.testing.assert_array_equal(token_P[rows][: mine.size], mine)
    assert (token_P[rows][mine.size :] == tokens).all()
    assert (expert_B[first[e] : first[e + 1]] == e).all()
    assert first[e + 1] > first[e]
  with_expert = np.flatnonzero(expert < 5)
  np.testing.assert_array_equal(token_P[row_T[with_expert]], with_expert)
  assert (row_T[np.flatnonzero(expert == 5)] == token_P.size).all()


def test_a_token_in_two_places_is_seen(monkeypatch):
  one_hot = lambda expert_R, wide: expert_R[:, None] <= jnp.arange(wide)[None]
  monkeypatch.setattr(places, '_one_hot', one_hot)
  with pytest.raises(AssertionError):
    test_places_are_a_stable_sort_into_blocks(1000)
