# SPDX-License-Identifier: Apache-2.0
"""Where pieces of prompts end, and what a program is told of them."""

import numpy as np

from zaya_jax.inference.decoding import pieces


def test_pieces_do_not_depend_on_what_comes_later():
  made = pieces.Pieces((32, 128, 512))
  # The last token is not read.
  ends = lambda length: made.ends(np.zeros(length + 1, np.int32))
  assert ends(1100) == [128, 256, 384, 512, 1024, 1100]
  for length in (5, 128, 300, 512, 513, 1023, 2000):
    found = ends(length)
    assert found[-1] == length
    assert found[:-1] == ends(3000)[: len(found) - 1]
    for begin in [0, *found[:-1]]:  # None reaches beyond the room.
      assert begin % made.limit(begin) == 0
  made = pieces.Pieces((64,))
  assert ends(130) == [64, 128, 130]
  assert ends(0) == []


def test_without_fine_ones_a_prompt_has_the_fewest_pieces():
  made = pieces.Pieces((32, 128, 512), fine=False)
  ends = lambda length: made.ends(np.zeros(length + 1, np.int32))
  assert ends(1100) == [512, 1024, 1100]
  assert ends(300) == [300]


def test_part_says_what_of_each_row_is_a_token():
  made = pieces.Pieces((4, 8))
  long, short = np.arange(10, 30), np.array([1, 2, 3])
  of = [pieces.Piece(5, long, 8), pieces.Piece(2, short, 0)]
  assert [made.count(piece) for piece in of] == [8, 2]
  assert [made.padded(piece) for piece in of] == [8, 4]
  part = {k: v.tolist() for k, v in made.part(of, 3, 8, 16).items()}
  assert part['tokens'] == [
    list(range(18, 26)),
    [1, 2, 3, 0, 0, 0, 0, 0],  # What follows is not counted.
    [0] * 8,
  ]
  assert [row[:2] for row in part['next']] == [[19, 20], [2, 3], [0, 0]]
  assert part['count'] == [8, 2, 0]
  assert part['fresh'] == [False, True, True]
  # A row without a piece goes behind the last slot, to no other row's place.
  assert part['slot'][:2] == [5, 2] and part['slot'][2] >= 16
