# SPDX-License-Identifier: Apache-2.0
"""The page of the router microscope: what stands where, and how it aligns."""

import pytest

from tests.support import pages, run_files
from zaya_jax.report import page, router_page


def _class(name, share, likes=(), examples=()):
  return {
    'class': name,
    'share': share,
    'likes': [{'token': t, 'lift': lift} for t, lift in likes],
    'examples': [list(example) for example in examples],
  }


@pytest.fixture
def found():
  """Two layers of three experts and the skip class."""
  examples = [('ab\n', 'x', 'tail'), ('long before ', 'yy', '\tz')]
  likes = [(token, 2.0 + i) for i, token in enumerate('a bb c d e f'.split())]
  layer = {
    'load_entropy': 0.9, 'token_entropy': 0.5, 'max_violation': 0.8,
    'chosen_probability': 0.4, 'skip': 0.1, 'dead': [2], 'nearly_dead': [1],
    'eda': {'mean': 0.9, 'incoming_share': 0.4, 'changed_choices': 0.2},
    'classes': [
      _class(0, 0.6, likes, examples),
      _class(1, 0.05, [], [('', 'q', '')]),
      _class(2, 0.0),
      _class('skip', 0.35),
    ],
  }  # fmt: skip
  return {
    'source': 'here', 'text': 'a.txt', 'tokens': 1000, 'num_experts': 3,
    'layers': [{**layer, 'layer': n} for n in range(2)],
    'bias_trajectory': {'steps': [1, 2], 'layers': [[[0.0] * 4] * 2] * 2},
  }  # fmt: skip


def _figures(found):
  return pages.figures(page.render(router_page.make(found)))


def test_page_has_every_figure(found):
  figures = _figures(found)
  assert list(figures) == ['layers', 'load', 'entropy', 'eda', 'bias', 'likes']
  assert not [f['id'] for f in figures.values() if not f['choices']]
  assert len(figures['bias']['choices']) == 2
  (load,) = figures['load']['choices']
  assert load['z'] == [[180, 180], [15, 15], [0, 0], [105, 105]]


def test_dead_and_nearly_dead_experts_are_counted(found):
  words = pages.Parsed(page.render(router_page.make(found))).words
  assert '2 of 6, and 2 nearly: below a fifth of an even share' in words
  (table,) = _figures(found)['layers']['choices']
  row = dict(zip(table['columns'], table['rows'][0], strict=True))
  assert (row['dead'], row['nearly dead']) == ('2', '1')


def test_marked_tokens_of_a_layer_stand_in_one_column(found):
  table = _figures(found)['likes']['choices'][0]
  columns = set()
  for row in table['rows']:
    marked = [*row[3][1::2]]
    for line in ''.join(row[3]).splitlines():
      columns.add(line.index(marked.pop(0)) if marked else None)
  assert columns == {len('long before ')}


def test_liked_tokens_are_marked_four_a_line(found):
  likes = _figures(found)['likes']['choices'][0]['rows'][0][2]
  assert likes[1::2] == ['a', 'bb', 'c', 'd', 'e', 'f']
  first, second = ''.join(likes).splitlines()
  assert first.split() == ['a', 'x2.0', 'bb', 'x3.0', 'c', 'x4.0', 'd', 'x5.0']
  assert [second.index(x) for x in 'ef'] == [first.index(x) for x in 'ab']


def test_few_tokens_are_warned_of(found):
  words = lambda tokens: (
    pages.Parsed(
      page.render(router_page.make({**found, 'tokens': tokens}))
    ).words
  )
  assert '149 tokens are few for 3 experts' in words(149)
  assert 'are few' not in words(150)


def test_hostile_text_stays_text(found):
  hostile = run_files.HOSTILE
  found |= {'source': hostile, 'text': hostile}
  found['layers'][0]['classes'][0] = _class(
    0, 1.0, [(hostile, 2.0)], [(hostile, hostile, hostile)]
  )
  text = page.render(router_page.make(found))
  assert '<img' not in text and text.count('</script>') == 3
  assert pages.Parsed(text).words.count(hostile) == 2
