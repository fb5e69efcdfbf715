# SPDX-License-Identifier: Apache-2.0
"""The network against its specification, and what may depend on what."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ops.attention import reference as attention
from ops.cca import reference as cca_ops
from tests.support import close, tiny, tracing
from tests.support.reference import zaya_numpy
from zaya_jax import config as config_lib
from zaya_jax.model import flops, zaya

CONFIGS = pathlib.Path(__file__).parents[3] / 'configs'

SHAPES = {
  'skip_zero': {},
  'skip_off': {'skip': 'off'},
  'skip_identity': {'skip': 'identity'},
  'sliding': {
    'num_layers': 3,
    'head_dim': 8,
    'sliding_layers': (0, 2),
    'sliding_window': 3,
    'sliding_rope_theta': 50.0,
  },
  'untied_biases': {
    'tie_embeddings': False,
    'head_bias': True,
    'attention_bias': True,
  },
  'groups_and_taps': {
    'num_heads': 6,
    'num_kv_heads': 1,
    'conv_depthwise': 3,
    'conv_grouped': 1,
    'rope_fraction': 1.0,
  },
  'to_compare_with': {
    'attention': 'gqa',
    'router': 'linear',
    'attention_bias': True,
  },
}


@pytest.fixture(params=SHAPES)
def model(request):
  return tiny.config(**SHAPES[request.param])


def tokens_of(model, rows=2, length=11, seed=1):
  rng = np.random.default_rng(seed)
  return rng.integers(0, model.vocab_size, (rows, length))


def influence(model, **inputs):
  """[L, L] bool: whether the logits at t change with the token at s."""
  length = 12
  rows = np.tile(np.arange(length), (length + 1, 1))
  rows[1:] += 20 * np.eye(length, dtype=int)  # Row s + 1 has another token s.
  inputs = {k: np.repeat(v, len(rows), axis=0) for k, v in inputs.items()}
  logits = np.asarray(tiny.logits(model, *tiny.arrays(model), rows, **inputs))
  # Logits are of the size of 1, so float32 noise is far below.
  return np.abs(logits[1:] - logits[:1]).max(-1).T > 1e-4


def test_logits_and_load_equal_the_specification(model):
  params, buffers = tiny.arrays(model)
  tokens = tokens_of(model)
  bound = lambda p: zaya.bind(model, p, buffers)
  features, logits = jax.jit(
    lambda p: (bound(p).features(tokens), bound(p)(tokens))
  )(params)
  expected = [zaya_numpy.forward(model, params, buffers, row) for row in tokens]
  # Otherwise rounding could choose another expert.
  assert min(out.margin.min() for out in expected) > 1e-4
  close.assert_close(
    logits, np.stack([out.logits for out in expected]), close.FLOAT32_DEEP
  )
  choice_NT = np.concatenate([out.choice for out in expected], axis=1)
  load = [np.bincount(c, minlength=model.num_classes) for c in choice_NT]
  np.testing.assert_array_equal(features.load.tokens, load)
  if model.skip != 'off':
    assert np.sum(load, axis=0)[-1] > 0


def test_what_is_not_to_be_learned_is_neutral_and_gets_no_gradient():
  def grads(model, params, buffers):
    tokens = tokens_of(model)
    loss = lambda p: zaya.bind(model, p, buffers)(tokens)[..., 0].sum()
    return jax.jit(jax.grad(loss))(params)

  model = tiny.config(eda=False, residual_scaling=False)
  params, buffers = jax.jit(lambda: zaya.init(model, jax.random.key(0)))()
  found = grads(model, params, buffers)
  learned = grads(tiny.config(), *tiny.arrays(tiny.config()))
  still = {'scale': 1, 'bias': 0}
  for merge in ('attn_merge', 'moe_merge'):
    for name, gradient in found['layers'][merge].items():
      value = still[name.rpartition('_')[2]]
      assert np.all(params['layers'][merge][name] == value)
      assert not np.any(gradient) and np.any(learned['layers'][merge][name])
  for name in ('input_scale', 'input_bias'):
    assert not np.any(found[name]) and np.any(learned[name])
  eda = [tree['layers']['router']['eda'] for tree in (params, found, learned)]
  assert not np.any(eda[0]) and not np.any(eda[1]) and np.any(eda[2][1:])


def test_left_padding_changes_nothing():
  model = tiny.config(num_layers=3, sliding_layers=(1,), sliding_window=3)
  params, buffers = tiny.arrays(model)
  tokens = tokens_of(model, rows=1)[0]
  alone = zaya_numpy.forward(model, params, buffers, tokens).logits
  padded = np.pad(tokens, (5, 0), constant_values=7)
  mask = np.arange(len(padded)) >= 5
  found, unmasked = tiny.logits(
    model,
    params,
    buffers,
    np.stack([padded, padded]),
    attention_mask=np.stack([mask, np.ones_like(mask)]),
  )
  close.assert_close(found[5:], alone, close.FLOAT32_DEEP)
  assert close.error(unmasked[5:], alone) > 0.01


def test_logits_depend_on_all_earlier_tokens_and_on_no_later_one():
  found = influence(tiny.config())
  np.testing.assert_array_equal(found, np.tri(12, dtype=bool))


def test_no_gradient_comes_from_a_later_token():
  model = tiny.config(tie_embeddings=False)
  params, buffers = tiny.arrays(model)
  tokens = np.arange(12)[None]  # Each has a row of the embedding for itself.

  def logits_at_7(embed):
    bound = zaya.bind(model, {**params, 'embed': embed}, buffers)
    return bound(tokens)[0, 7].sum()

  gradient = jax.jit(jax.grad(logits_at_7))(params['embed'])
  np.testing.assert_array_equal(
    np.any(np.asarray(gradient)[:12], axis=-1), np.arange(12) <= 7
  )


def test_sliding_layer_sees_its_window_and_what_convolutions_reach():
  model = tiny.config(num_layers=1, sliding_layers=(0,), sliding_window=3)
  age = np.arange(12)[:, None] - np.arange(12)
  reach = 2 + model.conv_context
  np.testing.assert_array_equal(influence(model), (age >= 0) & (age <= reach))


def see_the_future(monkeypatch):
  monkeypatch.setattr(
    attention, 'visible_keys', lambda n, s, *_: jnp.ones((1, n, s), bool)
  )


def convolve_with_the_next_token(monkeypatch):
  convolve = cca_ops.convolve
  ahead = lambda *args: jnp.roll(convolve(*args), -1, axis=1)
  monkeypatch.setattr(cca_ops, 'convolve', ahead)


@pytest.mark.parametrize(
  'patch', [see_the_future, convolve_with_the_next_token]
)
def test_look_into_the_future_is_caught(monkeypatch, patch):
  patch(monkeypatch)
  found = influence(tiny.config())
  assert (found & ~np.tri(12, dtype=bool)).any()


# Documents of 5, 1 and 4 tokens, then padding.
SEGMENTS = np.array([[1] * 5 + [2] + [3] * 4 + [0] * 2])
POSITIONS = np.array([[0, 1, 2, 3, 4, 0, 0, 1, 2, 3, 0, 0]])
SAME_DOCUMENT = SEGMENTS.T == SEGMENTS


def test_documents_of_a_row_do_not_see_each_other():
  found = influence(tiny.config(), segment_ids=SEGMENTS)
  np.testing.assert_array_equal(found, np.tri(12, dtype=bool) & SAME_DOCUMENT)


@pytest.mark.parametrize('hidden', [(), (0, 1, 9)])  # By attention_mask.
@pytest.mark.parametrize('name', ['skip_identity', 'sliding', 'untied_biases'])
def test_document_in_a_packed_row_equals_the_document_alone(name, hidden):
  model = tiny.config(**SHAPES[name])
  params, buffers = tiny.arrays(model)
  tokens = tokens_of(model, rows=1, length=12)
  inputs = {'segment_ids': SEGMENTS, 'positions': POSITIONS}
  shown = ~np.isin(range(12), hidden)
  if hidden:
    inputs['attention_mask'] = shown[None]
  packed = tiny.logits(model, params, buffers, tokens, **inputs)[0]
  for document in (1, 2, 3):
    here = shown & (SEGMENTS[0] == document)
    alone = zaya_numpy.forward(model, params, buffers, tokens[0, here])
    assert alone.margin.min() > 1e-4
    close.assert_close(packed[here], alone.logits, close.FLOAT32_DEEP)


def attend_to_other_documents(monkeypatch):
  visible = attention.visible_keys
  monkeypatch.setattr(
    attention,
    'visible_keys',
    lambda n, s, qs, ks, *rest: visible(n, s, None, None, *rest),
  )


def convolve_with_other_documents(monkeypatch):
  convolve = cca_ops.convolve
  monkeypatch.setattr(
    cca_ops,
    'convolve',
    lambda z, kernel, bias, _: convolve(z, kernel, bias, None),
  )


def delay_values_of_other_documents(monkeypatch):
  delay = lambda v, *_: jnp.pad(v, ((0, 0), (1, 0), (0, 0)))[:, :-1]
  monkeypatch.setattr(cca_ops, 'delay', delay)


@pytest.mark.parametrize(
  'patch',
  [
    attend_to_other_documents,
    convolve_with_other_documents,
    delay_values_of_other_documents,
  ],
)
def test_leak_between_documents_is_caught(monkeypatch, patch):
  patch(monkeypatch)
  found = influence(tiny.config(), segment_ids=SEGMENTS)
  assert (found & ~SAME_DOCUMENT).any()


@pytest.mark.parametrize(
  'inputs',
  [
    {'segment_ids': SEGMENTS},
    {'attention_mask': SEGMENTS > 0},
    {'attention_mask': SEGMENTS > 0, 'segment_ids': np.ones_like(SEGMENTS)},
  ],
)
def test_load_leaves_padding_out(inputs):
  model = tiny.config()
  params, buffers = tiny.arrays(model)
  tokens = tokens_of(model, rows=1, length=12)
  load = jax.jit(
    lambda t: (
      zaya.bind(model, params, buffers).features(t, **inputs).load.tokens
    )
  )
  np.testing.assert_array_equal(load(tokens).sum(1), [10, 10])
  other = tokens.copy()
  other[:, 10:] = (other[:, 10:] + 1) % model.vocab_size
  np.testing.assert_array_equal(load(other), load(tokens))


@functools.cache
def loss_and_grads(remat, scan_layers=True):
  """With the program that was traced for it."""
  model = tiny.config(remat=remat, scan_layers=scan_layers)
  params, buffers = tiny.arrays(model)
  loss = lambda p: jnp.square(
    zaya.bind(model, p, buffers)(tokens_of(model))
  ).mean()
  traced = jax.jit(jax.value_and_grad(loss)).trace(params)
  return traced.lower().compile()(params), traced.jaxpr


def test_layers_may_be_written_out():
  found = []
  for scan_layers in (True, False):
    values, traced = loss_and_grads('cheap', scan_layers)
    loops = f'length={tiny.config().num_layers}\n' in str(traced)
    assert loops == scan_layers
    found.append(values)
  close.assert_close(found[0], found[1], close.FLOAT32)


def test_recomputing_changes_neither_loss_nor_gradients():
  found, products, norms = [], [], []
  for remat in ('none', 'cheap', 'block'):
    values, traced = loss_and_grads(remat)
    found.append(values)
    names = [e.primitive.name for e in tracing.equations(traced)]
    products.append(names.count('dot_general'))
    norms.append(names.count('rsqrt'))
  for other in found[1:]:
    close.assert_close(found[0], other, close.FLOAT32_DEEP)
  none, cheap, block = products
  assert none == cheap < block  # What is dear is saved,
  none, cheap, block = norms
  assert none < cheap == block  # and the rest is computed again.


def test_bfloat16_model_is_close_and_gives_float32_logits():
  # One class to choose: rounding cannot choose another expert.
  shape = {'num_experts': 1, 'skip': 'off'}
  exact, rounded = (
    tiny.config(dtype=dtype, **shape) for dtype in ('float32', 'bfloat16')
  )
  params, buffers = tiny.arrays(exact)
  tokens = tokens_of(exact)
  found = tiny.logits(rounded, params, buffers, tokens)
  assert found.dtype == jnp.float32
  expected = tiny.logits(exact, params, buffers, tokens)
  difference = close.error(found, expected)
  assert 1e-4 < difference < 5 * close.BFLOAT16  # Some ten roundings.


def count(model):
  """Parameters of `init`, and what only meets the zero state of layer 0."""
  params, _ = jax.eval_shape(lambda: zaya.init(model, jax.random.key(0)))
  total = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))
  return total - model.d_router * (model.router == 'mlp')


def test_parameters_are_those_that_flops_counts(model):
  assert count(model) == flops.parameters(model).total


def test_released_model_has_8840488784_parameters():
  preset = config_lib.Config.from_flagfile(str(CONFIGS / 'zaya1_8b.flags'))
  assert count(preset.model) == 8_840_488_784


def test_first_weights_follow_the_seed_and_differ_by_layer():
  model = tiny.config()
  init = jax.jit(lambda seed: zaya.init(model, jax.random.key(seed)))
  (params, buffers), (again, _), (other, _) = init(0), init(0), init(1)
  close.assert_close(again, params, 0.0)
  assert close.error(other['embed'], params['embed']) > 0.1
  for name in ('attn', 'experts', 'router'):
    for leaf in jax.tree.leaves(params['layers'][name]):
      if np.ptp(leaf[0]):  # Not of one value, as a bias.
        assert close.error(leaf[0], leaf[1]) > 0.1
  np.testing.assert_array_equal(
    buffers['layers']['router']['balance_bias'], [[0, 0, 0, -1]] * 2
  )
