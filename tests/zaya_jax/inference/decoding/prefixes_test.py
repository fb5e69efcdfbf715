# SPDX-License-Identifier: Apache-2.0
"""Prompts that begin alike: what is kept is what would be read, to the bit."""

import copy
import dataclasses
import random

import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import serving
from zaya_jax.inference.decoding import pieces, prefixes, slots

RNG = np.random.default_rng(0)
FIRST = RNG.integers(0, 256, 30).astype(np.int32)
SECOND = np.append(FIRST, RNG.integers(0, 256, 25)).astype(np.int32)
OTHER = np.append(FIRST[:17], RNG.integers(0, 256, 9)).astype(np.int32)
# Prompt, and how many of its tokens were read before: whole pieces of 8.
TURNS = (
  (FIRST, 0),
  (SECOND, 24),
  (OTHER, 16),
  (SECOND, 54),  # The same once more: all but the last.
  (FIRST, 29),
  (FIRST[:9], 8),
)


@pytest.fixture(scope='module')
def model():
  return serving.model()


def answer(engine, ids, **how):
  """Tokens with their log-probabilities, and what was known of the prompt."""
  kept = serving.Kept(ids, 6, scored=True, **how)
  engine.submit([kept.job])
  tokens = [token for event in kept.all() for token in event.tokens]
  return [(token.id, token.logprob) for token in tokens], kept.job.cached


@pytest.fixture(scope='module')
def without(model):
  """The answers of an engine that keeps nothing."""
  engine = serving.engine(model)
  found = {ids.tobytes(): answer(engine, ids)[0] for ids, _ in TURNS}
  engine.close()
  return found


@pytest.fixture
def engine(model):
  made = serving.engine(model, prefixes=2)
  yield made
  made.close()


def test_answers_are_the_same_to_the_bit(engine, without, model):
  for ids, known in TURNS:
    found, cached = answer(engine, ids)
    assert found == without[ids.tobytes()]
    assert cached == known
  [tokens] = np.transpose(list(model.tokens([SECOND], 6)))
  assert [token for token, _ in without[SECOND.tobytes()]] == tokens.tolist()
  assert len({str(tokens) for tokens in without.values()}) == 4


def test_state_is_the_same_to_the_bit(model):
  def state(keeps):
    made = slots.Slots(model.decoder, 2, 64, (), serving.PIECES, int(keeps))
    for slot in (0, 1):
      at = made.restore(slot, SECOND)
      assert at == (54 if slot and keeps else 0)
      while at < 54:
        piece = pieces.Piece(slot, SECOND, at)
        made.read([piece])
        at += made.pieces.count(piece)
    return made._state['cache']

  ours, theirs = state(True), state(False)
  for name in ('conv', 'delayed', 'length', 'position', 'valid'):
    np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
  for name in ('k', 'v'):
    for a, b in zip(getattr(ours, name), getattr(theirs, name), strict=True):
      np.testing.assert_array_equal(a[:, :, :54], b[:, :, :54])
      assert np.abs(a[1, :, :54]).max() > 0


@pytest.mark.parametrize(
  ('steps', 'ends'), [(1, [8, 16, 24, 32, 54]), (16, [32, 54])]
)
def test_only_a_cpu_reads_a_beginning_in_small_pieces(model, steps, ends):
  decoder = copy.copy(model.decoder)
  decoder.about = dataclasses.replace(decoder.about, steps=steps)
  made = slots.Slots(decoder, 2, 64, (), (4, 8, 32), prefixes=1)
  assert made.pieces.ends(SECOND) == ends


FAULTS = {
  'convolution_of_another_position': lambda pool: {
    'conv': jnp.roll(pool.conv, 2, axis=1)
  },
  'convolution_samples_swapped': lambda pool: {'conv': pool.conv[:, :, ::-1]},
  'stale_value': lambda pool: {'delayed': jnp.roll(pool.delayed, 2, axis=1)},
  'keys_of_others': lambda pool: {
    'k': tuple(jnp.roll(k, 1, axis=0) for k in pool.k)
  },
  'values_moved': lambda pool: {
    'v': tuple(jnp.roll(v, 1, axis=2) for v in pool.v)
  },
}


@pytest.mark.parametrize('name', FAULTS)
def test_fault_is_caught(engine, without, name):
  assert answer(engine, FIRST) == (without[FIRST.tobytes()], 0)
  pool = engine._slots._pool
  pool.cache = dataclasses.replace(pool.cache, **FAULTS[name](pool.cache))
  found, cached = answer(engine, SECOND)
  assert found != without[SECOND.tobytes()] and cached == 24


def test_prompt_whose_tokens_are_scored_is_read(engine, without):
  for _ in range(2):
    found, cached = answer(engine, FIRST, prompt_scored=True)
    assert [token for token, _ in found] == [
      token for token, _ in without[FIRST.tobytes()]
    ]
    assert cached == 0
  assert answer(engine, FIRST)[1] == 0  # Nor was it kept.


def test_rows_that_others_took_are_not_found(model):
  chance = random.Random(0)
  whole = RNG.integers(0, 256, 250).astype(np.int32)

  def prompt():
    common, own = chance.randrange(250), chance.randrange(1, 60)
    own = RNG.integers(0, 256, own).astype(np.int32)
    return np.append(whole[:common], own)[:240]

  # Their pieces have 256 tokens' room; they have several times as many.
  prompts = [prompt() for _ in range(12)]
  ours = serving.engine(model, prefixes=1)
  theirs = serving.engine(model)
  known = 0
  for ids in prompts:
    found, cached = answer(ours, ids)
    known += cached
    assert found == answer(theirs, ids)[0]
  assert known > 100
  ours.close()
  theirs.close()


def test_table_is_of_the_newest():
  table = prefixes.Table(4)
  a, b, c, d, e = (bytes([n]) for n in range(5))
  assert table.find([a, b]) == []
  [first] = table.add([a], 1, False)
  rows = table.add([a, b], 2, False)
  assert table.find([a, b, c]) == [(first,), rows]
  assert table.add([a, b], 2, False) is None
  [third] = table.add([c], 1, True)
  assert {first, *rows, third} == {0, 1, 2, 3}
  # A whole prompt goes first, although it came last.
  assert table.add([d], 1, False) == (third,)
  assert table.find([c]) == []
  # Then what is used least, and the end of a beginning before the beginning.
  assert table.add([e], 1, False)[0] in rows
  assert table.find([a, b]) == [(first,)] and len(table.find([d])) == 1
  # What was found goes last; a whole prompt too.
  table = prefixes.Table(2)
  table.add([a], 1, True)
  table.find([a])
  table.add([b], 1, False)
  table.add([c], 1, False)
  assert not table.find([a]) and table.find([b])


def test_no_row_is_given_twice_and_none_is_lost():
  chance, table = random.Random(1), prefixes.Table(16)
  known = {}
  for _ in range(2000):
    chain = [
      f'{"".join(chance.choices("ab", k=n))}'.encode() for n in range(1, 5)
    ]
    chain = [b''.join(chain[: n + 1]) for n in range(4)]
    found = table.find(chain)
    assert found == [known[key] for key in chain[: len(found)]]
    for n in range(len(found), 4):
      is_end = n == 3 and chance.random() < 0.5
      rows = table.add(chain[: n + 1], chance.randint(1, 4), is_end)
      known = {key: of for key, of in known.items() if not {*of} & {*rows}} | {
        chain[n]: rows
      }
    # Every piece still has those before it.
    assert len(table.find(chain)) == 4
    held = [row for of in table._rows.values() for row in of]
    assert sorted([*held, *table._free]) == list(range(16))


def test_key_is_of_all_that_came_before():
  ids = np.arange(12, dtype=np.int32)
  keys = prefixes.chain(ids, [4, 8, 12])
  assert len({*keys}) == 3
  assert prefixes.chain(ids[:9], [4, 8, 9])[:2] == keys[:2]
  other = ids.copy()
  other[1] = 7
  assert not {*prefixes.chain(other, [4, 8, 12])} & {*keys}
  # The same tokens in other pieces, or as other bytes, are not the same.
  assert prefixes.chain(ids, [6, 12])[-1] != keys[-1]
  assert prefixes.chain(ids.astype(np.int64), [4, 8, 12]) == keys
