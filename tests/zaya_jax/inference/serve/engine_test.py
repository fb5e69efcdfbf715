# SPDX-License-Identifier: Apache-2.0
"""Texts that come and go side by side are those of each alone."""

import dataclasses
import random
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import serving, tiny
from zaya_jax.inference.decoding import network, programs, slots
from zaya_jax.inference.serve import engine as engine_lib

# Of prompts: none to read, a part of a piece, a whole one, several.
LENGTHS = (1, 3, 9, 30, 17, 25)
PROMPTS = [
  np.random.default_rng(n).integers(0, 256, n).astype(np.int32) for n in LENGTHS
]
HOW = (
  {},
  {'temperature': 0.9, 'seed': 3, 'top_p': 0.7},
)


@pytest.fixture(scope='module')
def model():
  return serving.model()


@pytest.fixture(scope='module')
def alone(model):
  """The tokens of each prompt by `Model.tokens`, as --mode=generate has it."""
  return [
    [token for [token] in model.tokens([ids], 12, **HOW[i % len(HOW)])]
    for i, ids in enumerate(PROMPTS)
  ]


@pytest.fixture
def engine(model):
  made = serving.engine(model)
  yield made
  made.close()


def jobs():
  return [
    serving.Kept(ids, **HOW[i % len(HOW)]) for i, ids in enumerate(PROMPTS)
  ]


def side_by_side(engine):
  """The tokens of all prompts; each comes when the one before has begun."""
  kept = jobs()
  for one, next_ in zip(kept, kept[1:], strict=False):
    one.first = lambda job=next_.job: engine.submit([job])
  engine.submit([kept[0].job])
  return [one.ids() for one in kept]


def test_texts_are_those_of_each_alone(engine, alone):
  assert side_by_side(engine) == alone
  assert len(set(sum(alone, []))) > 12
  # A slot is as new for the next text.
  assert side_by_side(engine) == alone
  assert engine.busy == engine.waiting == 0


def test_programs_of_several_steps_make_the_same_texts(model, alone):
  several = dataclasses.replace(model)
  # As on accelerators; texts end in the middle of a program.
  several.decoder.about = dataclasses.replace(model.decoder.about, steps=5)
  made = serving.engine(several)
  found = side_by_side(made)
  stop = alone[0][4]
  made.close()
  assert found == alone
  made = serving.engine(dataclasses.replace(several, stop_ids=(stop,)))
  kept = serving.Kept(PROMPTS[0])
  made.submit([kept.job])
  assert kept.ids() == alone[0][: alone[0].index(stop)]
  made.close()


def reads_padding(monkeypatch):
  forward = network.forward

  def whole(config, weights, tokens, cache, mask=None, axis=None):
    return forward(config, weights, tokens, cache, mask | True, axis)

  monkeypatch.setattr(network, 'forward', whole)


def forgets_to_begin_anew(monkeypatch):
  part = slots.Slots._part
  monkeypatch.setattr(
    slots.Slots,
    '_part',
    lambda *args: part(*args) | {'fresh': np.zeros(args[2], bool)},
  )


def moves_slots_that_wait(monkeypatch):
  """A step that also moves slots whose prompt is being read."""
  forward = network.forward

  def all_of_them(config, weights, tokens, cache, mask=None, axis=None):
    one = tokens.shape[1] == 1
    mask = jnp.ones_like(mask) if one else mask
    return forward(config, weights, tokens, cache, mask, axis)

  monkeypatch.setattr(network, 'forward', all_of_them)


@pytest.mark.parametrize(
  'fault',
  [
    forgets_to_begin_anew,
    *(
      pytest.param(fault, marks=pytest.mark.long)  # They compile all anew.
      for fault in (reads_padding, moves_slots_that_wait)
    ),
  ],
)
def test_fault_is_caught(monkeypatch, model, alone, fault):
  fault(monkeypatch)
  if fault is not forgets_to_begin_anew:  # Not kept for others.
    monkeypatch.setattr('zaya_jax.inference.decoding.decoder._programs', {})
  made = serving.engine(model)
  try:
    side_by_side(made)
    assert side_by_side(made) != alone
  finally:
    made.close()


@pytest.fixture
def some(model):
  """An engine of eight slots that steps over few, and how many it computed."""
  made = serving.engine(model, count=8)
  for compile_ in made._slots.rest(scored=False):
    compile_()
  compiled, counts = made._slots._compiled, []

  def counted(program, args, *how):
    if program is programs.slot_steps:
      counts.append(len(args[0]))
    return compiled(program, args, *how)

  made._slots._compiled = counted
  yield made, counts
  made.close()


def test_few_texts_are_steps_over_few_slots(some, alone):
  engine, counts = some
  assert side_by_side(engine) == alone
  assert {1, 2} <= {*counts} <= {1, 2, 8}
  counts.clear()
  # One in a slot behind others, which end.
  kept = jobs()
  engine.submit([one.job for one in kept[:3]])
  for one in kept[:2]:
    engine.cancel([one.job])
  assert kept[2].ids() == alone[2]
  assert counts[-1] == 1


def test_steps_over_other_slots_are_caught(some, alone, monkeypatch):
  engine, _ = some
  run = engine._slots._run
  monkeypatch.setattr(
    engine._slots,
    '_run',
    lambda program, args, *how: (
      run(program, ((args[0] + 1) % 8, *args[1:]), *how)
      if program is programs.slot_steps and len(args[0]) < 8
      else run(program, args, *how)
    ),
  )
  assert side_by_side(engine) != alone


@pytest.fixture
def several(model):
  """An engine that reads up to four prompts at once, and how many it did."""
  made = serving.engine(model, count=8, together=4)
  for compile_ in made._slots.rest(scored=False):
    compile_()
  read, counts = made._slots.read, []

  def counted(pieces, scored):
    counts.append(len(pieces))
    return read(pieces, scored)

  made._slots.read = counted
  yield made, counts
  made.close()


def all_at_once(engine):
  kept = jobs()
  engine.submit([one.job for one in kept])
  return [one.ids() for one in kept]


def test_prompts_that_are_read_together_are_those_of_each_alone(several, alone):
  engine, counts = several
  for _ in range(2):  # In slots that had others.
    assert all_at_once(engine) == alone
  assert {2, 4} <= {*counts} <= {1, 2, 3, 4}


def test_prompts_in_slots_of_others_are_caught(several, alone, monkeypatch):
  engine, _ = several
  part = engine._slots._part

  def turned(pieces, rows, size):
    made = part(pieces, rows, size)
    if len(pieces) > 1:
      made['slot'] = jnp.roll(made['slot'][: len(pieces)], 1)
      made['slot'] = jnp.append(made['slot'], jnp.arange(8, 8 + rows))[:rows]
    return made

  monkeypatch.setattr(engine._slots, '_part', turned)
  assert all_at_once(engine) != alone


def test_those_that_come_and_go_while_programs_are_compiled(model):
  chance, rng = random.Random(0), np.random.default_rng(0)
  engine = serving.engine(model, count=6, prefixes=2, together=4)
  compiler = threading.Thread(
    target=lambda: [compile_() for compile_ in engine._slots.rest()]
  )
  compiler.start()
  common = rng.integers(0, 256, 60)
  waited_for = []
  for _ in range(50):
    begin = common[: chance.choice((0, 9, 24, 60))]
    ids = np.append(begin, rng.integers(0, 256, chance.randrange(1, 40)))
    scored = chance.random() < 0.1
    one = serving.Kept(
      ids, chance.randrange(1, 9), scored=scored, prompt_scored=scored
    )
    engine.submit([one.job])
    if chance.random() < 0.15:
      engine.cancel([one.job])
    else:
      waited_for.append(one)
  for one in waited_for:
    found, job = one.ids(), one.job
    assert found == [t for [t] in model.tokens([job.ids], job.max_tokens)]
  assert sum(one.job.cached for one in waited_for) > 100
  assert engine.busy == engine.waiting == 0
  compiler.join()
  engine.close()


def test_tokens_do_not_come_twice_where_it_was_asked(some, model, monkeypatch):
  engine, _ = some
  asked = [(ids, n) for ids in PROMPTS[2:4] for n in (0, 1, 2)]
  how = {'temperature': 0.8, 'seed': 5}
  expected = [
    [
      token
      for [token] in model.tokens([ids], 40, no_repeat=n, **how)
      if token >= 0
    ]
    for ids, n in asked
  ]

  def found():
    kept = [serving.Kept(ids, 40, no_repeat=n, **how) for ids, n in asked]
    engine.submit([one.job for one in kept])
    return [one.ids() for one in kept]

  assert found() == expected
  for (ids, n), tokens in zip(asked, expected, strict=True):
    assert n != 1 or not {*tokens} & {*ids.tolist()}
  assert expected[0] != expected[1] != expected[2]
  # The prompt counts as well.
  start = engine._slots.start
  forgets = lambda *args, ids, **how: start(*args, ids=ids[:0], **how)
  monkeypatch.setattr(engine._slots, 'start', forgets)
  monkeypatch.setattr(engine._slots, 'end', lambda slot: start(slot, 0, 0))
  assert found() != expected


def test_prompt_that_waits_for_a_compiler_delays_nobody(model):
  engine = serving.engine(model)
  later = engine._slots.rest()
  waits = serving.Kept(PROMPTS[3], 2, scored=True, prompt_scored=True)
  engine.submit([waits.job])
  assert len(submitted(engine, PROMPTS[4], 12).ids()) == 12
  assert waits.events.empty()
  for compile_ in later:
    compile_()
  assert len(waits.ids()) == 2
  engine.close()


def submitted(engine, ids, count):
  kept = serving.Kept(ids, count)
  engine.submit([kept.job])
  return kept


def test_probabilities_are_those_of_the_whole_row(engine, model):
  ids = PROMPTS[3]
  kept = serving.Kept(ids, 5, scored=True, prompt_scored=True)
  engine.submit([kept.job])
  events = kept.all()
  tokens = [t for e in events for t in (*e.prompt, *e.tokens)]
  row = np.array([token.id for token in tokens])
  np.testing.assert_array_equal(row[: len(ids)], ids)
  logits = tiny.logits(model.config, model.params, model.buffers, row[None])[0]
  logits = np.asarray(logits, np.float64)[:, : serving.BYTES.vocab_size]
  expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  assert tokens[0].logprob is None and tokens[0].top == ()
  for place, token in enumerate(tokens[1:]):
    np.testing.assert_allclose(
      token.logprob, expected[place, token.id], atol=2e-4
    )
    order = np.sort(expected[place])[::-1]
    found = [logprob for _, logprob in token.top]
    np.testing.assert_allclose(found, order[: len(found)], atol=2e-4)
    best, _ = token.top[0]
    np.testing.assert_allclose(expected[place, best], order[0], atol=2e-4)
  assert len(tokens[1].top) == 20


def test_prompt_alone_is_read(engine):
  kept = serving.Kept(PROMPTS[2], 0, prompt_scored=True)
  engine.submit([kept.job])
  [event] = kept.all()
  assert (event.finish, event.tokens) == ('length', ())
  assert [token.id for token in event.prompt] == PROMPTS[2].tolist()


def test_text_ends_at_a_stop_token(model, alone):
  stop = alone[0][4]
  made = serving.engine(dataclasses.replace(model, stop_ids=(stop,)))
  kept = serving.Kept(PROMPTS[0])
  made.submit([kept.job])
  events = kept.all()
  made.close()
  found = [token.id for event in events for token in event.tokens]
  assert found == alone[0][: alone[0].index(stop)]
  assert events[-1].finish == 'stop'


def test_text_ends_before_a_stop_text(engine, model):
  whole = model.generate([PROMPTS[1]], 40)[0]
  stop = whole[12:15]
  kept = serving.Kept(PROMPTS[1], 40, stop=(stop,))
  engine.submit([kept.job])
  events = kept.all()
  assert ''.join(event.text for event in events) == whole[: whole.index(stop)]
  assert events[-1].finish == 'stop'


def held(engine):
  """Two jobs that have begun; the engine waits until the gate is opened."""
  gate, began = threading.Event(), threading.Event()
  kept = [serving.Kept([n], 200) for n in (1, 2)]
  kept[1].first = lambda: (began.set(), gate.wait(60))
  engine.submit([one.job for one in kept])
  assert began.wait(60)
  return kept, gate


def test_cancelled_job_gives_its_slot_to_the_next(engine):
  (first, second), gate = held(engine)
  waits, next_ = serving.Kept([4], 200), serving.Kept([3], 2)
  engine.submit([waits.job, next_.job])
  engine.cancel([first.job, waits.job])
  gate.set()
  assert len(next_.ids()) == 2
  assert len(second.ids()) == 200
  # Neither was worked on to its end.
  assert first.job.done and first.job.made < 200
  assert waits.job.done and waits.events.empty()


def test_full_queue_takes_all_or_none(model):
  made = serving.engine(model, waiting=1)
  began, gate = held(made)
  two = [serving.Kept([5], 1) for _ in range(2)]
  with pytest.raises(engine_lib.FullError):
    made.submit([kept.job for kept in two])
  assert (made.busy, made.waiting) == (2, 0)
  made.submit([two[0].job])
  with pytest.raises(engine_lib.FullError):
    made.submit([two[1].job])
  made.cancel([one.job for one in began])
  gate.set()
  assert len(two[0].ids()) == 1
  made.close()
  with pytest.raises(engine_lib.ClosedError):
    made.submit([two[1].job])


def test_failure_ends_all_jobs(monkeypatch, model):
  made = serving.engine(model)

  def fails(*_):
    raise jax.errors.JaxRuntimeError('out of memory')

  monkeypatch.setattr(made._slots, 'step', fails)
  monkeypatch.setattr(threading, 'excepthook', lambda _: None)
  kept = [serving.Kept([n]) for n in range(5)]
  made.submit([one.job for one in kept])
  assert [one.all()[-1].finish for one in kept] == ['error'] * 5
  made.close()
  assert 'out of memory' in str(made.failure)
