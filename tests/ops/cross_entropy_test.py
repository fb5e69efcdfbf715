# SPDX-License-Identifier: Apache-2.0
"""The chunked cross-entropy against all logits at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ops
from ops import dispatch
from ops.cross_entropy import api, hopper, reference, triton, xla
from tests.support import close, gpus

T, D, V = 12, 5, 7


def arguments(dtype=jnp.float32):
  keys = jax.random.split(jax.random.key(0), 5)
  x = 3 * jax.random.normal(keys[0], (T, D))
  head = jax.random.normal(keys[1], (V, D))
  bias = jax.random.normal(keys[2], (V,))
  target = jax.random.randint(keys[3], (T,), 0, V).at[0].set(V - 1)
  weight = jax.random.uniform(keys[4], (T,)).at[jnp.array([1, 8])].set(0.0)
  return x.astype(dtype), head.astype(dtype), bias, target, weight


def value_and_gradients(function, x, head, bias, target, weight):
  run = lambda x, head, bias: 2.5 * function(x, head, target, weight, bias)
  wanted = (0, 1) if bias is None else (0, 1, 2)
  return jax.jit(jax.value_and_grad(run, wanted))(x, head, bias)


@pytest.fixture(params=['xla', 'triton'])
def engine(request):
  with dispatch.use(cross_entropy=request.param):
    yield request.param


@pytest.fixture(params=[1, 4, T], ids='{}_tokens_a_chunk'.format)
def chunks(request, engine, monkeypatch):
  """Sets how many tokens a chunk has, of each engine."""
  size = request.param
  monkeypatch.setattr(xla, 'chunk_tokens', lambda tokens, vocab: size)
  monkeypatch.setattr(api, '_CHUNK', size * V)
  monkeypatch.setattr(api, '_PART', 2 * V)


@pytest.mark.parametrize('with_bias', [False, True], ids=['', 'bias'])
def test_value_and_gradients_equal_the_reference(chunks, with_bias):
  x, head, bias, target, weight = arguments()
  given = (x, head, bias if with_bias else None, target, weight)
  found = value_and_gradients(ops.linear_cross_entropy, *given)
  expected = value_and_gradients(reference.linear_cross_entropy, *given)
  close.assert_close(found, expected, close.FLOAT32)


def test_reference_is_the_textbook_formula():
  x, head, bias, target, weight = arguments()
  logits = np.asarray(x, np.float64) @ np.asarray(head, np.float64).T
  logits += np.asarray(bias)
  probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
  expected = -np.sum(np.asarray(weight) * np.log(probs[np.arange(T), target]))
  found = reference.linear_cross_entropy(x, head, target, weight, bias)
  close.assert_close(found, np.float64(expected), close.FLOAT32)


def test_tokens_of_weight_0_do_not_count(chunks):
  x, head, bias, target, weight = arguments()
  given = (head, bias, target, weight)
  loss, (dx, *_) = value_and_gradients(ops.linear_cross_entropy, x, *given)
  assert not np.any(np.asarray(dx)[[1, 8]])
  other = x.at[jnp.array([1, 8])].set(50.0)
  assert value_and_gradients(ops.linear_cross_entropy, other, *given)[0] == loss
  nothing = (head, bias, target, jnp.zeros_like(weight))
  found = value_and_gradients(ops.linear_cross_entropy, x, *nothing)
  assert all(not np.any(leaf) for leaf in jax.tree.leaves(found))


def test_large_logits_do_not_overflow(chunks):
  x, head, bias, target, weight = arguments()
  given = (300 * x, head, bias, target, weight)
  found = value_and_gradients(ops.linear_cross_entropy, *given)
  expected = value_and_gradients(reference.linear_cross_entropy, *given)
  close.assert_close(found, expected, close.FLOAT32)


def test_bfloat16_is_close_to_float32(chunks):
  x, head, bias, target, weight = arguments(jnp.bfloat16)
  given = (x, head, bias, target, weight)
  found = value_and_gradients(ops.linear_cross_entropy, *given)
  assert [g.dtype for g in found[1]] == [jnp.bfloat16, jnp.bfloat16, 'float32']
  exact = (x.astype(jnp.float32), head.astype(jnp.float32))
  expected = value_and_gradients(
    reference.linear_cross_entropy, *exact, bias, target, weight
  )
  close.assert_close(found, expected, close.BFLOAT16)


@pytest.mark.parametrize('scale', [1, 100])
def test_chunks_for_hopper_begin_anew_where_a_loss_is_large(
  plain, scale, monkeypatch
):
  rng = np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.bfloat16)
  x, head = scale * draw(40, 64), draw(256, 64)
  target = jnp.asarray(rng.integers(0, 256, 40), jnp.int32)
  weight = jnp.asarray(rng.random(40), jnp.float32).at[3].set(0)
  given = (x, head, None, target, weight)
  expected = value_and_gradients(reference.linear_cross_entropy, *given)
  with dispatch.use(cross_entropy='hopper'):
    found = value_and_gradients(ops.linear_cross_entropy, *given)
  close.assert_close(found, expected, close.BFLOAT16)
  # Were it not for that, losses beyond 60 nats would come out too small.
  monkeypatch.setattr(hopper, '_FAR', np.inf)
  with dispatch.use(cross_entropy='hopper'):
    cut, _ = value_and_gradients(ops.linear_cross_entropy, *given)
  assert (cut < 0.9 * expected[0]) == (scale > 1)


@pytest.mark.parametrize(
  'tokens, vocab, limit, chunk',
  [
    (12, 7, 84, 12),
    (12, 7, 83, 6),
    (12, 7, 30, 4),
    (13, 7, 90, 1),
    (6, 9, 1, 1),
  ],
)
def test_chunk_is_the_largest_that_divides_and_fits(
  tokens, vocab, limit, chunk
):
  assert xla.chunk_tokens(tokens, vocab, limit) == chunk


def test_all_logits_are_never_in_memory(monkeypatch):
  # Not of the kernel: interpreted, it copies.
  monkeypatch.setattr(xla, 'chunk_tokens', lambda tokens, vocab: 8)
  tokens, vocab, width = 512, 2048, 2

  def scratch(function):
    run = lambda x, head: function(
      x, head, jnp.zeros(tokens, jnp.int32), jnp.ones(tokens)
    )
    compiled = jax.jit(jax.grad(run)).lower(
      jnp.zeros((tokens, width)), jnp.zeros((vocab, width))
    )
    return compiled.compile().memory_analysis().temp_size_in_bytes

  logits = 4 * tokens * vocab
  assert scratch(ops.linear_cross_entropy) < logits / 4
  assert scratch(reference.linear_cross_entropy) >= logits


def test_shapes_that_do_not_fit_are_refused():
  x, head, bias, target, weight = arguments()
  with pytest.raises(ValueError, match='does not fit head'):
    ops.linear_cross_entropy(x[:, :4], head, target, weight, bias)
  with pytest.raises(ValueError, match='does not fit head'):
    ops.linear_cross_entropy(x[:4], head, target, weight, bias)


@pytest.mark.parametrize('tokens', [1, 255, 256, 2049, 8192, 16384, 100_003])
@pytest.mark.parametrize('vocab', [7, 4096, 262_272])
def test_parts_hold_all_tokens_and_little_more(tokens, vocab):
  chunks, count, rows = api.parts(tokens, vocab)
  assert tokens <= chunks * count * rows < tokens + chunks * (count + 1)
  assert count * rows * vocab <= api._CHUNK + (count + 1) * vocab
  assert rows * vocab <= api._PART + vocab
  if vocab == 262_272 and tokens == 8192:
    assert (chunks, count, rows) == (4, 8, 256)


def test_kernel_writes_in_place():
  x = jax.ShapeDtypeStruct((512, 128), jnp.bfloat16)
  head = jax.ShapeDtypeStruct((262_272, 128), jnp.bfloat16)
  token = lambda dtype: jax.ShapeDtypeStruct((512,), dtype)
  run = jax.jit(jax.value_and_grad(ops.linear_cross_entropy, (0, 1)))
  with dispatch.compile_for('rocm'), dispatch.use(cross_entropy='triton'):
    traced = run.trace(x, head, token(jnp.int32), token(jnp.float32))
    text = gpus.lower(traced, 'rocm').as_text()
  assert 'cross_entropy_softmax' in text
  assert 'output_operand_alias' in text


LOAD, STORE = triton.plgpu.load, triton.plgpu.store
MUTANTS = {
  'last_columns_not_written': (
    (triton.plgpu, 'store'),
    lambda ref, value, mask: STORE(
      ref, value, mask=mask & (jnp.arange(mask.size) < 5)
    ),
  ),
  'no_mask_of_columns': (
    (triton.plgpu, 'load'),
    lambda ref, mask, other: LOAD(ref, mask=mask, other=0.0),
  ),
  'never_over_again': ((triton, '_FAR'), 1e9),
}


@pytest.mark.parametrize('name', [None, *MUTANTS])
def test_mutants_of_the_kernel_are_caught(name, monkeypatch):
  if name:
    monkeypatch.setattr(*MUTANTS[name][0], MUTANTS[name][1])
  x, head, bias, target, weight = arguments()
  error = 0.0
  # Beyond the first block, 16 columns, logits of some units, or of hundreds.
  for factor in (1, 40):
    more = jnp.concatenate([head, head, factor * head])
    given = (x, more, jnp.tile(bias, 3), target, weight)
    with dispatch.use(cross_entropy='triton'):
      found = value_and_gradients(ops.linear_cross_entropy, *given)
    expected = value_and_gradients(reference.linear_cross_entropy, *given)
    for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
      worst = np.abs(np.nan_to_num(a, nan=1e9) - b).max() / np.abs(b).max()
      error = max(error, worst)
  assert (error > 1e-2) if name else (error < 1e-5)


def test_kernel_says_what_it_does_not_take():
  x, head, *_ = arguments()
  assert api.unsupported(x, head) is None
  assert 'head' in api.unsupported(x, head.astype(jnp.bfloat16))
  assert 'no tokens' in api.unsupported(x[:0], head)
  large = jax.ShapeDtypeStruct((10**9, D), jnp.float32)
  assert 'vocabulary' in api.unsupported(x, large)
