# SPDX-License-Identifier: Apache-2.0
"""Colors that can be seen on both pages, and text that stays text."""

import re
from xml.etree import ElementTree

import pytest

from zaya_jax.plan.show import svg

_SVG = '{http://www.w3.org/2000/svg}'


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
