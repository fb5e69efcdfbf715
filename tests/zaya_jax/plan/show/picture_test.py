# SPDX-License-Identifier: Apache-2.0
"""The picture of a plan: what it says, and that all of it can be read."""

import itertools
import re
from xml.etree import ElementTree

import pytest

from tests.support import released
from zaya_jax.plan import planner
from zaya_jax.plan.show import picture, svg, tables

_SVG = '{http://www.w3.org/2000/svg}'
WORDS = {
  'released': ['--plan.devices=1024'],
  'fsdp': ['--plan.devices=1024', '--mesh.fsdp=4', '--mesh.context=2'],
  'parts': ['--plan.devices=8', '--optim.accumulation=8'],
  'too much': ['--plan.devices=8', '--plan.chip=cpu'],
}
COMPILED = {'arguments': 40e9, 'temporary': 57e9}


@pytest.fixture(scope='module', params=WORDS)
def plan(request):
  return planner.make(released.parse(*WORDS[request.param]))


def _texts(tree):
  """(left, right, base line, height, words) of each text."""
  for one in tree.iter(f'{_SVG}text'):
    x, y = float(one.get('x')), float(one.get('y'))
    size = float(one.get('font-size'))
    width = svg.measure(one.text, size)
    left = x - width if one.get('text-anchor') == 'end' else x
    yield left, left + width, y, size, one.text


def _overlapping(texts):
  return [
    (a[4], b[4])
    for a, b in itertools.combinations(texts, 2)
    if abs(a[2] - b[2]) < max(a[3], b[3]) and a[0] < b[1] and b[0] < a[1]
  ]


def test_text_is_whole_and_apart(plan):
  tree = ElementTree.fromstring(picture.draw({**plan, 'compiled': COMPILED}))
  width, height = float(tree.get('width')), float(tree.get('height'))
  texts = list(_texts(tree))
  assert all(0 <= t[0] and t[1] <= width and t[2] < height for t in texts)
  assert not _overlapping(texts)
  # The check sees a text that is moved onto its neighbour.
  left, right, *rest = texts[0]
  assert _overlapping([*texts, (left, right, *rest)])


def test_who_cannot_see_it_is_told(plan):
  tree = ElementTree.fromstring(picture.draw(plan))
  assert tree.get('role') == 'img'
  words = {one.get('id'): one.text for one in tree if one.get('id')}
  assert set(tree.get('aria-labelledby').split()) == set(words)
  assert words['title'].startswith('plan for ')
  assert f'MFU {plan["time"]["mfu"]:.1%}' in words['desc']


def test_lengths_of_bars_are_bytes():
  plan = planner.make(released.parse('--plan.devices=1024'))
  tree = ElementTree.fromstring(picture.draw({**plan, 'compiled': COMPILED}))
  widths = {
    title.text.partition(':')[0]: float(one.get('width')) + 1  # And a gap.
    for one in tree.iter(f'{_SVG}rect')
    for title in one.iter(f'{_SVG}title')
  }
  for name, size in (
    ('kept', 40e9), ('in passing', 57e9),
    ('weights', plan['memory']['weights']),
  ):  # fmt: skip
    room = 960 - 150 - 24 - 64
    assert widths[name] == pytest.approx(size / 192e9 * room, abs=0.01), name


def _blocks(tree):
  """Class, width and name of each block."""
  for one in tree.iter(f'{_SVG}rect'):
    for title in one.iter(f'{_SVG}title'):
      name = re.split('[,:]', title.text)[0]
      yield one.get('class'), float(one.get('width')), name


def test_a_color_has_one_meaning(plan):
  tree = ElementTree.fromstring(picture.draw({**plan, 'compiled': COMPILED}))
  meanings = {}
  for kind, _, name in _blocks(tree):
    meanings.setdefault(kind, set()).add(name)
  network = {c['what'].partition(',')[0] for c in plan['collectives']}
  network |= {'gradients', 'weights'}
  one_thing = [
    {'parameters'}, {'weights'}, {'gradients'}, {'activations'}, {'temporary'},
    {'logits', 'head'}, {'optimizer', 'Newton-Schulz', 'update'},
    {'projections', 'convolutions', 'attention'}, {'router', 'experts'},
    {'elementwise'}, {'kept'}, {'in passing'}, network,
  ]  # fmt: skip
  for kind, names in meanings.items():
    assert any(names <= known for known in one_thing), (kind, names)


def test_every_block_can_be_seen(plan):
  tree = ElementTree.fromstring(picture.draw(plan))
  assert min(width for _, width, _ in _blocks(tree)) >= 3
  # A block that is drawn later would cover the small one before it.
  names = [name for _, _, name in _blocks(tree)]
  assert names.index('parameters') > names.index('activations')


def test_legend_has_its_values_beside_the_names(plan):
  tree = ElementTree.fromstring(picture.draw(plan))
  words = ' '.join(text for *_, text in _texts(tree))
  for name in ('parameters', 'optimizer', 'temporary'):
    size = plan['memory'][name]
    assert (f'{name} {tables.nbytes(size)}' in words) == (size > 0)
  for part in (*plan['time']['parts'], *plan['time']['update']):
    assert f'{part["name"]} {tables.seconds(part["seconds"])}' in words


def test_timeline_is_the_step_of_the_plan(plan):
  spans, time = picture.timeline(plan), plan['time']
  ends = [s.start + s.seconds for s in spans]
  assert max(ends) == pytest.approx(time['step'])
  total = lambda keep: sum(s.seconds for s in spans if keep(s))
  hidden = total(lambda s: 'hidden' in s.name)
  assert hidden == pytest.approx(sum(time['network_hidden'].values()))
  exposed = total(lambda s: s.lane == 'network') - hidden
  assert exposed == pytest.approx(time['network_exposed'])
  for lane in ('compute', 'network'):
    lane = sorted((s.start, s.seconds) for s in spans if s.lane == lane)
    for (start, seconds), (after, _) in itertools.pairwise(lane):
      assert after >= start + seconds - 1e-9 * time['step']


def test_each_message_is_in_its_phase():
  words = '--plan.devices=1024', '--mesh.expert=8', '--mesh.context=2'
  plan = planner.make(released.parse(*words))
  phases = {}
  for span in picture.timeline(plan):
    phases.setdefault(span.name, set()).add(span.phase)
  assert phases['gradients'] == {'update'}
  assert phases['parameters'] == {'forward'}
  assert phases['their gradients'] == {'backward'}
  assert phases['tokens'] == phases['halo'] == {'forward', 'backward'}
