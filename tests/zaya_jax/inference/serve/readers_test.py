# SPDX-License-Identifier: Apache-2.0
"""Which prompts are read together."""

import numpy as np

from tests.support import serving
from zaya_jax.inference.decoding import pieces as pieces_lib
from zaya_jax.inference.serve import readers as readers_lib

RNG = np.random.default_rng(0)


class Slots:
  """Keeps what is asked of it."""

  def __init__(self, together=3, keeps=False):
    self.pieces = pieces_lib.Pieces((4, 8))
    self.together = lambda size: together
    self.beginning = lambda ids: ids[:8].tobytes() if keeps else None
    self.scores = True
    self.restored, self.pieces_read = [], []

  def restore(self, slot, ids):
    self.restored.append(slot)
    return 0

  def read(self, pieces, scored):
    self.pieces_read.append([(p.slot, p.begin) for p in pieces])
    return {'logprob': np.zeros(8)} if scored else {}


def job(length, **how):
  ids = RNG.integers(0, 256, length)
  return serving.Kept(ids, **how).job


def readers(slots, **jobs):
  made = readers_lib.Readers(slots)
  for name, one in jobs.items():
    made.add(int(name[1:]), one)
  return made


def turns(made):
  """The slots of each turn, until all are read."""
  found = []
  while turn := made.next():
    found.append(list(turn))
    made.read(turn)
    for slot, one in turn.items():
      if one.read == len(one.ids) - 1:
        made.remove(slot)
  assert not len(made)
  return found


def test_pieces_of_one_size_are_read_together():
  slots = Slots()
  made = readers(slots, s0=job(20), s1=job(3), s2=job(20), s3=job(9), s4=job(9))
  # 19 tokens are pieces of 8, 8 and 3.
  assert turns(made) == [[0, 2, 3], [0, 2, 4], [0, 1, 2]]
  assert slots.pieces_read[1] == [(0, 8), (2, 8), (4, 0)]


def test_one_at_a_time_is_in_order():
  made = readers(Slots(together=1), s4=job(9), s0=job(20), s1=job(1))
  assert turns(made) == [[4], [0], [0], [0], [1]]


def test_prompts_that_begin_alike_wait_for_the_first():
  def three():
    found = {f's{n}': job(20) for n in range(3)}
    found['s1'].ids[:8] = found['s0'].ids[:8]
    return found

  slots = Slots(keeps=True)
  made = readers(slots, **three())
  assert list(made.next()) == [0, 2] == slots.restored
  # What the first one leaves is there when the other begins.
  assert turns(made) == [[0, 2]] * 3 + [[1]] * 3
  assert slots.restored == [0, 2, 1]
  # Where nothing is left, nothing is waited for.
  assert turns(readers(Slots(keeps=False), **three())) == [[0, 1, 2]] * 3


def test_scored_prompts_are_read_alone_and_whole():
  slots = Slots(keeps=True)
  scored = job(9, prompt_scored=True)
  like = job(9)
  like.ids[:] = scored.ids
  made = readers(slots, s0=job(9), s1=scored, s2=like, s3=job(9))
  # It leaves nothing for the one that begins alike.
  assert turns(made) == [[0, 2, 3], [1]]
  assert slots.restored == [0, 2, 3]
  [(count, found)] = scored.pieces
  assert count == 8 and 'logprob' in found


def test_scored_prompts_wait_for_their_program():
  slots = Slots()
  slots.scores = False
  made = readers(slots, s0=job(9, prompt_scored=True), s1=job(9))
  turn = made.next()
  assert list(turn) == [1]
  made.read(turn)
  made.remove(1)
  assert not made.next()
  slots.scores = True
  assert turns(made) == [[0]]
