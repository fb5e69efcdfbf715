# SPDX-License-Identifier: Apache-2.0
"""What is sampled, when a text ends, and how often decoding compiles."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipelines import tokenizer
from tests.support import quick, tiny
from zaya_jax import config as config_lib
from zaya_jax.inference import model as model_lib
from zaya_jax.inference.decoding import network, sampling

BYTES = tokenizer.load('bytes')
PROMPTS = [np.array([257, 65, 66]), np.array([257, 67, 68, 69, 70])]


def model(stop_ids=(), seed=0, **changes):
  # Untied: a tied model of random weights repeats one token.
  shape = {'num_layers': 1, 'vocab_size': 264, 'tie_embeddings': False}
  config = tiny.config(**shape, **changes)
  params, buffers = tiny.arrays(config, seed)
  return model_lib.Model(
    config=config,
    params=params,
    buffers=buffers,
    tokenizer=BYTES,
    stop_ids=stop_ids,
  )


def greedy_by_whole_rows(net, row, steps):
  """The likeliest tokens, each from the logits of the whole row."""
  row = list(row)
  for _ in range(steps):
    # One shape for all: what comes later does not matter.
    padded = np.zeros((1, 12), int)
    padded[0, : len(row)] = row
    logits = net(padded)[0, len(row) - 1, : BYTES.vocab_size]
    row.append(int(np.argmax(logits)))
  return row[-steps:]


def test_greedy_tokens_are_the_likeliest_of_the_whole_rows():
  net = model()
  found = np.transpose(list(net.tokens(PROMPTS, 6)))
  expected = [greedy_by_whole_rows(net, row, 6) for row in PROMPTS]
  assert len(set(expected[0])) > 2
  np.testing.assert_array_equal(found, expected)


def test_row_that_has_ended_gives_no_more_tokens():
  free = np.transpose(list(model().tokens(PROMPTS, 6)))
  stop = int(free[0, 2])
  ends = [list(row).index(stop) if stop in row else 6 for row in free]
  assert ends[0] < 6 == ends[1]  # One row ends, the other goes on.
  found = np.transpose(list(model((stop,)).tokens(PROMPTS, 6)))
  for row, expected, end in zip(found, free, ends, strict=True):
    np.testing.assert_array_equal(row[:end], expected[:end])
    assert set(row[end:]) <= {-1}


def test_decoding_ends_when_all_rows_have_ended():
  first = next(model().tokens(PROMPTS[:1], 1))
  assert list(model(tuple(first)).tokens(PROMPTS[:1], 50)) == [[-1]]


def test_rows_that_only_pad_the_embedding_are_no_tokens():
  net = model(head_bias=True)
  net.params['head_bias'] = jnp.where(jnp.arange(264) >= 259, 1e3, 0.0)
  hot = {'temperature': 100.0, 'seed': 3}
  for found in (net.tokens(PROMPTS, 6), net.tokens(PROMPTS, 6, **hot)):
    assert np.max(list(found)) < BYTES.vocab_size


def test_lengths_of_one_bucket_compile_once(monkeypatch):
  traced = []
  forward = network.forward
  monkeypatch.setattr(
    network, 'forward', lambda *a, **k: traced.append(1) or forward(*a, **k)
  )
  net = model(d_expert=7)  # Of no other test: nothing is compiled yet.

  def compiled(length, max_tokens, **how):
    traced.clear()
    list(net.tokens([np.full(length, 65)], max_tokens, **how))
    return len(traced)

  assert compiled(3, 4) == 2  # One program for the prompt, one for a token.
  assert compiled(32, 2) == 0
  assert compiled(20, 32) == 0
  assert compiled(20, 32, temperature=0.7, top_p=0.5, seed=3) == 1
  assert compiled(9, 30, temperature=0.9, top_p=0.8, seed=4) == 0
  assert compiled(33, 31) == 0
  assert compiled(34, 2) == 2


def test_generate_gives_text_and_streams_the_first():
  net, pieces = model(), []
  texts = net.generate(['AB', 'CDEF'], max_tokens=6, on_text=pieces.append)
  rows = np.transpose(list(net.tokens(PROMPTS, 6)))
  assert texts == [BYTES.decode(row) for row in rows]
  assert ''.join(pieces) == texts[0]
  assert net.generate('AB', max_tokens=6) == texts[:1]


def test_model_without_a_tokenizer_writes_no_text():
  config = tiny.config(num_layers=1)
  params, buffers = tiny.arrays(config)
  net = model_lib.Model(
    config=config, params=params, buffers=buffers, tokenizer=None
  )
  with pytest.raises(config_lib.UsageError, match='no tokenizer'):
    net.generate('AB')


# Draws of one distribution at once.
DRAWS = 20_000
LOGITS = np.log([0.02, 0.4, 0.05, 0.3, 0.2, 0.03])


@jax.jit
def draw(seed, temperature, top_p):
  logits = jnp.tile(jnp.asarray(LOGITS, jnp.float32)[None], (DRAWS, 1))
  return sampling.choose(
    logits, jax.random.key(seed), temperature=temperature, top_p=top_p
  )


def distribution(temperature, top_p):
  """Tokens in order of probability until top_p is reached, in float64."""
  probs = np.exp(LOGITS / temperature)
  probs /= probs.sum()
  order = np.argsort(-probs)
  needed = 1 + np.searchsorted(np.cumsum(probs[order]), top_p)
  kept = np.zeros_like(probs)
  kept[order[:needed]] = probs[order[:needed]]
  return kept / kept.sum()


@pytest.mark.parametrize(
  'temperature, top_p, tokens',
  [
    (1.0, 1.0, 6),
    (0.5, 1.0, 6),
    (3.0, 1.0, 6),
    (1.0, 0.96, 5),
    (1.0, 0.75, 3),
    (1.0, 0.65, 2),
    (0.5, 0.75, 2),
    (1.0, 0.3, 1),
    (1.0, 0.0, 1),
  ],
)
def test_samples_follow_temperature_and_top_p(temperature, top_p, tokens):
  found = np.bincount(draw(0, temperature, top_p), minlength=6) / DRAWS
  expected = distribution(temperature, top_p)
  assert np.count_nonzero(expected) == tokens
  assert np.array_equal(found > 0, expected > 0)
  # Five standard deviations of a frequency of so many draws.
  bound = 5 * np.sqrt(expected * (1 - expected) / DRAWS)
  assert np.all(np.abs(found - expected) <= bound)


forbid_repeats = jax.jit(sampling.forbid_repeats)


@pytest.mark.parametrize('count', [1, 2, 3, 5])
def test_what_is_forbidden_is_what_would_repeat(count):
  rng = np.random.default_rng(count)
  seen = rng.integers(0, 3, (6, 20))
  seen[0] = 1
  seen[1, :9], seen[2, :18] = -1, -1  # Padding.
  for last in (0, count - 1, count, 12, 19):
    columns = np.where(np.arange(20) <= last, seen, 7)  # Not read any more.
    logits = forbid_repeats(
      np.zeros((6, 4), np.float32), columns, np.int32(last), count
    )
    for row, found in zip(seen, np.asarray(logits), strict=True):
      text = [int(token) for token in row[: last + 1] if token >= 0]
      runs = [text[i : i + count] for i in range(len(text) - count + 1)]
      tail = text[len(text) - count + 1 :] if len(text) >= count - 1 else None
      wrong = [
        tail is not None and [*tail, token] in runs for token in range(4)
      ]
      np.testing.assert_array_equal(found == -np.inf, wrong)


def test_nothing_comes_twice():
  net = model()
  # Each count has a program of its own.
  for count in (4, 3):
    free = np.transpose(list(net.tokens(PROMPTS, 40)))
    found = np.transpose(list(net.tokens(PROMPTS, 40, no_repeat=count)))
    for rows, repeats in ((free, True), (found, False)):
      for prompt, row in zip(PROMPTS, rows, strict=True):
        text = np.concatenate([prompt, row])
        places = range(len(text) - count + 1)
        runs = [tuple(text[i : i + count]) for i in places]
        assert (len(set(runs)) < len(runs)) == repeats


def test_temperature_of_zero_takes_the_likeliest():
  assert np.all(draw(0, 0.0, 1.0) == 1)
  assert np.all(draw(1, 0.0, 0.1) == 1)


def test_samples_follow_the_seed():
  same, again, other = (draw(seed, 1.0, 1.0) for seed in (0, 0, 1))
  np.testing.assert_array_equal(same, again)
  assert np.any(same != other)


def test_each_token_is_drawn_anew():
  # So hot that all tokens are equally likely: only the draw decides.
  found = [row[0] for row in model().tokens(PROMPTS[:1], 6, temperature=1e6)]
  assert len(set(found)) > 1


@pytest.mark.parametrize('max_tokens', [1, 2, 9, 10])
def test_several_steps_of_a_program_give_the_tokens_of_single_ones(max_tokens):
  net = model()
  expected = list(net.tokens(PROMPTS, max_tokens))
  net = model()
  net.decoder.about = dataclasses.replace(net.decoder.about, steps=4)
  assert list(net.tokens(PROMPTS, max_tokens)) == expected
  assert len(expected) == max_tokens


@pytest.mark.parametrize('devices', quick.only((2, 4, 8), 4))
def test_cache_on_several_devices_gives_the_tokens_of_one(devices):
  one = model(sliding_layers=(0,), sliding_window=5)
  several = dataclasses.replace(one, context=devices)
  rows = [np.arange(65, 65 + n) for n in (70, 40)]
  expected = list(one.tokens(rows, 20))
  assert list(several.tokens(rows, 20)) == expected
  assert len(np.unique(expected)) > 5


def test_more_devices_than_there_are_is_refused():
  with pytest.raises(config_lib.UsageError, match='--mesh.context=16 needs'):
    next(dataclasses.replace(model(), context=16).tokens(PROMPTS, 2))


def test_text_ends_before_a_stop_text_and_never_shows_its_beginning():
  net, pieces = model(), []
  (whole,) = net.generate('AB', max_tokens=12)
  stop = whole[5:8]
  expected = whole[: whole.index(stop)]
  found = net.generate(
    'AB', max_tokens=12, stop=['none', stop], on_text=pieces.append
  )
  assert found == [expected] and ''.join(pieces) == expected
  assert 0 < len(expected) < len(whole)


def test_beginning_of_a_stop_text_that_goes_on_otherwise_is_shown():
  net, pieces = model(), []
  (whole,) = net.generate('AB', max_tokens=12)
  stop = whole[-1] + 'never'
  found = net.generate('AB', max_tokens=12, stop=[stop], on_text=pieces.append)
  assert found == [whole] and ''.join(pieces) == whole


def test_speed_counts_tokens():
  net = model()
  list(net.tokens(PROMPTS, 6))
  speed = net.decoder.speed
  assert (speed.prompt_tokens, speed.new_tokens) == (8, 12)
  assert min(speed.prefill_s, speed.decode_s) > 0
  assert 'prompt 8 tokens' in str(speed) and 'new 12 tokens' in str(speed)
