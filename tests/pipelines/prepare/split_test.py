# SPDX-License-Identifier: Apache-2.0

import pytest

from pipelines import errors
from pipelines.prepare import split
from pipelines.prepare.input import rows


def _documents(texts):
  return [
    rows.Document(f'{i}.txt', 0, lambda text=text: iter([text]))
    for i, text in enumerate(texts)
  ]


def _sides(documents, held_out):
  return {d.name: {side for side, _, _ in held_out.parts(d)} for d in documents}


def test_share_is_held_out_by_whole_documents():
  documents = _documents(['x'] * 1000)
  sides = _sides(documents, split.choose(documents, 0.2))
  assert all(len(side) == 1 for side in sides.values())
  assert 150 < sum(side == {'val'} for side in sides.values()) < 250


def test_choice_of_a_document_does_not_depend_on_the_others():
  documents = _documents(['x'] * 100)
  all_sides = _sides(documents, split.choose(documents, 0.2))
  few = documents[20:80]
  few_sides = _sides(few, split.choose(few, 0.2))
  assert few_sides == {d.name: all_sides[d.name] for d in few}


@pytest.mark.parametrize('fraction', [1e-9, 0.5, 0.9])
@pytest.mark.parametrize('count', [2, 3, 7])
def test_neither_side_is_ever_empty(count, fraction):
  documents = _documents(['x'] * count)
  held_out = split.choose(documents, fraction)
  sides = _sides(documents, held_out)
  assert set.union(*sides.values()) == {'train', 'val'}
  assert held_out == split.choose(documents, fraction)


@pytest.mark.parametrize('fraction', [1e-9, 1 - 1e-9])
def test_later_text_moves_no_document_but_itself(fraction):
  documents = _documents(['x'] * 20)
  moved = [
    set(split.choose(documents[:count], fraction).moved)
    for count in range(2, 21)
  ]
  for before, after, new in zip(moved, moved[1:], documents[2:], strict=False):
    assert after in (before, {new.key})


def test_nothing_is_held_out_at_fraction_zero():
  documents = _documents(['one', 'two'])
  sides = _sides(documents, split.choose(documents, 0.0))
  assert set.union(*sides.values()) == {'train'}


def test_of_a_single_document_the_tail_is_held_out():
  text = ''.join(chr(ord('a') + i % 26) for i in range(100))
  document = rows.Document('a', 0, lambda: iter([text[:45], text[45:]]))
  held_out = split.choose([document], 0.1)
  parts = list(held_out.parts(document))
  assert parts == [
    ('train', True, text[:45]),
    ('train', False, text[45:90]),
    ('val', True, text[90:]),
  ]


def test_single_character_cannot_be_divided():
  with pytest.raises(errors.DataError, match='1 character') as caught:
    split.choose(_documents(['x']), 0.1)
  assert caught.value.exit_code == 2
