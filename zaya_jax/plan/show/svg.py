# SPDX-License-Identifier: Apache-2.0
"""A small writer of SVG: rectangles and text, in light and in dark.

Colors are classes of a style sheet, so that what shows the picture chooses the
theme. Each fill has a relative luminance of 0.2 to 0.3: it stands out from
white and from black, and dark text on it can be read.
"""

import html

PALETTE = {
  'blue': '#4a82dc', 'orange': '#d9732a', 'green': '#2f9c64',
  'violet': '#a374d5', 'red': '#e0555f', 'teal': '#2f96a6',
  'olive': '#908b30', 'pink': '#cd68a5', 'grey': '#8a929c',
  'sand': '#ab8456', 'slate': '#6d86a3',
}  # fmt: skip
ON_FILL = '#0b0e11'  # Text on a fill.
LIGHT = {'paper': '#ffffff', 'ink': '#1c2127', 'quiet': '#5b6570'}
DARK = {'paper': '#14171a', 'ink': '#e8eaed', 'quiet': '#a0a9b3'}
_FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
_EM = 0.6  # Width of a letter of the widest of these fonts, with room.


class Drawing:
  """Shapes on a page of a given width; the page grows down."""

  def __init__(self, width: float, title: str, summary: str):
    """Makes an empty page; `title` and `summary` are for screen readers."""
    self.width = width
    self._words = html.escape(title), html.escape(summary)
    self._shapes = []

  def rect(
    self, x: float, y: float, width: float, height: float, kind: str,
    *, tip: str = '',
  ) -> None:  # fmt: skip
    """A rectangle of a class of colors, with what a pointer on it shows."""
    tip = tip and f'<title>{html.escape(tip)}</title>'
    self._shapes.append(
      f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0):.2f}" '
      f'height="{height:.2f}" class="{kind}">{tip}</rect>'
    )

  def text(
    self, x: float, y: float, words: str, *, size: float = 13,
    kind: str = 'ink', anchor: str = 'start', bold: bool = False,
  ) -> None:  # fmt: skip
    """Text whose base line is at y."""
    weight = ' font-weight="600"' if bold else ''
    self._shapes.append(
      f'<text x="{x:.2f}" y="{y:.2f}" font-size="{size}" class="{kind}" '
      f'text-anchor="{anchor}"{weight}>{html.escape(words)}</text>'
    )

  def render(self, height: float) -> str:
    """The whole picture."""
    title, summary = self._words
    size = f'width="{self.width:g}" height="{height:g}"'
    return '\n'.join([
      f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 '
      f'{self.width:g} {height:g}" role="img" aria-labelledby="title desc" '
      f'font-family="{_FONT}">',
      f'<title id="title">{title}</title>',
      f'<desc id="desc">{summary}</desc>',
      f'<style>{_style()}</style>',
      f'<defs>{"".join(_hatch(n, c) for n, c in PALETTE.items())}</defs>',
      f'<rect {size} class="paper"/>',
      *self._shapes,
      '</svg>\n',
    ])  # fmt: skip


def measure(words: str, size: float) -> float:
  """Width of a text, rather too large than too small."""
  return len(words) * _EM * size


def _style() -> str:
  rules = lambda colors: ''.join(
    f'.{name}{{fill:{color}}}' for name, color in colors.items()
  )
  hatched = {f'{name}-hatched': f'url(#{name})' for name in PALETTE}
  return (
    rules({**LIGHT, **PALETTE, **hatched, 'on': ON_FILL})
    + f'@media (prefers-color-scheme:dark){{{rules(DARK)}}}'
  )


def _hatch(name: str, color: str) -> str:
  return (
    f'<pattern id="{name}" width="6" height="6" patternUnits="userSpaceOnUse" '
    f'patternTransform="rotate(45)"><rect width="3" height="6" fill="{color}"/>'
    f'<rect x="3" width="3" height="6" fill="{color}" opacity="0.35"/>'
    '</pattern>'
  )
