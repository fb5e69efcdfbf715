# SPDX-License-Identifier: Apache-2.0
"""The picture of a plan: what it says, and that all of it can be read."""

import itertools
import re
from xml.etree import ElementTree

import pytest

from tests.support import released
from zaya_jax.plan import planner
from zaya_jax.plan.show import picture, svg

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
    ('parameters', plan['memory']['parameters']),
  ):  # fmt: skip
    room = 960 - 150 - 24 - 64
    assert widths[name] == pytest.approx(size / 192e9 * room, abs=0.01), name


def test_timeline_is_the_step_of_the_plan(plan):
  spans, time = picture.timeline(plan), plan['time']
  ends = [s.start + s.seconds for s in spans]
  assert max(ends) == pytest.approx(time['step'])
  total = lambda keep: sum(s.seconds for s in spans if keep(s))
  hidden = total(lambda s: 'hidden' in s.name)
  assert hidden == pytest.approx(time['network_hidden'])
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
  assert phases['gradients'] == phases['updates'] == {'update'}
  assert phases['their gradients'] == {'backward'}
  assert phases['tokens'] == phases['halo'] == {'forward', 'backward'}


def _luminance(color):
  parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
  parts = [
    x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts
  ]
  return sum(
    w * x for w, x in zip((0.2126, 0.7152, 0.0722), parts, strict=True)
  )


def _contrast(a, b):
  low, high = sorted((_luminance(a), _luminance(b)))
  return (high + 0.05) / (low + 0.05)


def test_colors_can_be_told_from_the_page_in_light_and_dark():
  # WCAG 2.1: 4.5 for text, 3 for shapes. Black on white is 21.
  assert _contrast('#000000', '#ffffff') == pytest.approx(21)
  for theme in (svg.LIGHT, svg.DARK):
    assert _contrast(theme['ink'], theme['paper']) >= 4.5
    assert _contrast(theme['quiet'], theme['paper']) >= 4.5
    for color in svg.PALETTE.values():
      assert _contrast(color, theme['paper']) >= 3
      assert _contrast(color, svg.ON_FILL) >= 4.5


def test_words_cannot_end_the_picture():
  page = svg.Drawing(100, '<a> & b', 'c')
  page.text(0, 10, '</text>')
  tree = ElementTree.fromstring(page.render(20))
  assert [t.text for t in tree.iter(f'{_SVG}text')] == ['</text>']
  assert not re.search(r'<a>', page.render(20))
