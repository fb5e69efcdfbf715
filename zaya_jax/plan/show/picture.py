# SPDX-License-Identifier: Apache-2.0
"""The plan as a picture: bars of memory, and a step from left to right."""

import dataclasses
import itertools
from typing import Any

from zaya_jax.metrics import text
from zaya_jax.plan.cost import timing
from zaya_jax.plan.show import svg, tables

_WIDTH, _MARGIN, _LABEL = 960, 24, 150
_BAR, _GAP, _LINE = 30, 12, 20  # Heights.
_THIN = 4  # Pixels of the smallest block.
# A color has one meaning in the whole picture: the optimizer's state and its
# work are violet, the head and its logits pink.
_MEMORY = {
  'parameters': 'blue', 'optimizer': 'violet', 'weights': 'slate',
  'gradients': 'orange', 'activations': 'green', 'logits': 'pink',
  'temporary': 'olive',
}  # fmt: skip
_COMPILED = {'kept': 'blue-hatched', 'in passing': 'green-hatched'}
_PARTS = {
  'projections': 'teal', 'convolutions': 'teal', 'attention': 'teal',
  'router': 'sand', 'experts': 'sand', 'head': 'pink', 'elementwise': 'grey',
  'Newton-Schulz': 'violet', 'update': 'violet',
}  # fmt: skip
_NETWORK = 'red'
_HIDDEN = {'forward': 'weights, hidden', 'backward': 'gradients, hidden'}
# Messages of one pass alone, and those after both.
_ONCE = {
  'parameters': 'forward', 'expert weights': 'forward',
  'their gradients': 'backward',
}  # fmt: skip
_LATE = ('gradients', 'Muon', 'sample of the load', 'loss, norm, load')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Span:
  """What is done from `start` for `seconds`, and in which color."""

  phase: str
  name: str
  start: float
  seconds: float

  @property
  def kind(self) -> str:
    """The class of its color."""
    hidden = '-hatched' if self.name in _HIDDEN.values() else ''
    return _PARTS.get(self.name, _NETWORK + hidden)

  @property
  def lane(self) -> str:
    """Where it is drawn."""
    return 'compute' if self.name in _PARTS else 'network'


def draw(plan: dict[str, Any]) -> str:
  """SVG of the plan of `planner.make`."""
  title = tables.title(plan)
  held, time = plan['memory'], plan['time']
  spare = held['capacity'] - held['total']
  summary = (
    f'{tables.nbytes(held["total"])} of {tables.nbytes(held["capacity"])}'
    f' in use, {tables.nbytes(abs(spare))} '
    f'{"left" if spare >= 0 else "MISSING"}; a step of '
    f'{text.short(plan["tokens"]["step"])} tokens in '
    f'{tables.seconds(time["step"])}, {text.short(time["tokens_per_second"])} '
    f'tokens/s, MFU {time["mfu"]:.1%}'
  )
  page = svg.Drawing(_WIDTH, title, summary)
  page.text(_MARGIN, 40, title, size=20, bold=True)
  page.text(_MARGIN, 64, summary, kind='quiet')
  y = _memory(page, plan, 104)
  y = _step(page, plan, y + 36)
  page.text(
    _MARGIN, y + 20, 'By formula: what the machine allows, not a prediction.',
    size=12, kind='quiet',
  )  # fmt: skip
  return page.render(y + 40)


def timeline(plan: dict[str, Any]) -> list[Span]:
  """One step: the lanes compute and network, without a hole between them.

  A third of the passes is forward. Messages of single layers are drawn
  together, at the end of their pass, and behind it as far as the plan hides
  them.
  """
  time, spans, now = plan['time'], [], 0.0
  sent = [
    (c['what'], c['seconds']) for c in plan['collectives'] if not c['hidden']
  ]
  hidden = time['network_hidden']
  exposed = {
    phase: sum(
      c['seconds'] for c in plan['collectives'] if c['hidden'] == phase
    )
    - hidden[phase]
    for phase in hidden
  }

  def add(phase, name, seconds, start=None):
    nonlocal now
    start = now if start is None else start
    spans.append(Span(phase=phase, name=name, start=start, seconds=seconds))
    now = max(now, start + seconds)

  for phase, share in timing.PASSES.items():
    for part in time['parts'][:: 1 if phase == 'forward' else -1]:
      add(phase, part['name'], part['seconds'] * share)
    add(phase, _HIDDEN[phase], hidden[phase], now - hidden[phase])
    for name, seconds in sent:
      if name not in _LATE:
        once = _ONCE.get(name)
        add(phase, name, seconds * ((phase == once) if once else share))
    if phase == 'forward':
      add(phase, 'weights', exposed[phase])
  late = [('gradients', exposed['backward'])]
  late += [c for c in sent if c[0] in _LATE]
  update = [(part['name'], part['seconds']) for part in time['update']]
  for name, seconds in late + update:
    add('update', name, seconds)
  return [span for span in spans if span.seconds]


def _memory(page, plan, y):
  """Stacked bars, one under the other, and the capacity of the chip."""
  held, bars = plan['memory'], {}
  kinds = {kind: held[kind] for kind in _MEMORY}
  for remat, activations in held['activations_by_remat'].items():
    bars[f'remat {remat}'] = {**kinds, 'activations': activations}
  bars[f'remat {held["remat"]}'] = kinds
  if compiled := plan.get('compiled'):
    bars['XLA:ROCm'] = {
      'kept': compiled['arguments'], 'in passing': compiled['temporary']
    }  # fmt: skip
  colors = {**_MEMORY, **_COMPILED}
  most = max(held['capacity'], *(sum(b.values()) for b in bars.values()))
  scale = _scale(most)
  page.text(_MARGIN, y, 'Memory of a device', size=15, bold=True)
  top = y = y + 36
  for name, parts in bars.items():
    chosen = name in (f'remat {held["remat"]}', 'XLA:ROCm')
    page.text(_MARGIN, y + 20, name, bold=chosen)
    x, blocks = _LABEL, []
    for kind, size in parts.items():
      tip = f'{kind}: {tables.nbytes(size)}'
      blocks += [(x, size * scale, colors[kind], kind, tip)] if size else []
      x += size * scale
    _blocks(page, y, blocks)
    total = tables.nbytes(sum(parts.values()))
    page.text(x + 8, y + 20, total, bold=chosen)
    y += _BAR + _GAP
  x = _LABEL + held['capacity'] * scale
  page.rect(x - 1, top - 6, 2, y - top, 'ink')
  words = f'{plan["chip"]["name"]} has {tables.nbytes(held["capacity"])}'
  page.text(x, top - 12, words, size=12, anchor='end', bold=True)
  used = {kind: size for bar in bars.values() for kind, size in bar.items()}
  used.update(kinds)
  entries = {
    colors[kind]: [(kind, tables.nbytes(used[kind]))]
    for kind in colors
    if used.get(kind)
  }
  return _legend(page, y + 14, entries)


def _step(page, plan, y):
  """The two lanes of a step, phases above them."""
  spans = timeline(plan)
  end = max(s.start + s.seconds for s in spans)
  scale = _scale(end)
  page.text(_MARGIN, y, 'One step', size=15, bold=True)
  y += 36
  for phase, found in itertools.groupby(spans, lambda s: s.phase):
    found = list(found)
    start = min(s.start for s in found if 'hidden' not in s.name)
    stop = max(s.start + s.seconds for s in found)
    x, width = _LABEL + start * scale, (stop - start) * scale
    for words in (f'{phase} {tables.seconds(stop - start)}', phase):
      if svg.measure(words, 12) < width:
        page.text(x, y - 6, words, size=12, kind='quiet')
        break
    page.rect(x, y - 2, width - 2, 2, 'quiet')
  for lane in ('compute', 'network'):
    y += 6
    page.text(_MARGIN, y + 20, lane)
    blocks = []
    for s in spans:
      if s.lane == lane:
        tip = f'{s.name}, {s.phase}: {tables.seconds(s.seconds)}'
        x = _LABEL + s.start * scale
        blocks.append((x, s.seconds * scale, s.kind, s.name, tip))
    _blocks(page, y, blocks)
    y += _BAR + 2
  page.text(_LABEL, y + 16, '0', size=12, kind='quiet')
  words = tables.seconds(end)
  x = _LABEL + end * scale
  page.text(x, y + 16, words, size=12, kind='quiet', anchor='end')
  time, entries = plan['time'], {}
  for p in (*time['parts'], *time['update']):
    told = p['name'], tables.seconds(p['seconds'])
    entries.setdefault(_PARTS[p['name']], []).append(told)
  for kind, name, seconds in (
    ('', 'exposed', time['network_exposed']),
    ('-hatched', 'hidden', sum(time['network_hidden'].values())),
  ):
    if seconds:
      told = f'network, {name}', tables.seconds(seconds)
      entries[_NETWORK + kind] = [told]
  return _legend(page, y + 40, entries)


def _scale(most: float) -> float:
  """Of bars that leave room for a number behind them."""
  return (_WIDTH - _LABEL - _MARGIN - 64) / most


def _blocks(page, y, blocks):
  """Draws the smallest last: they lie on the edges of their neighbors."""
  for x, width, kind, name, tip in sorted(blocks, key=lambda b: -b[1]):
    page.rect(x, y, max(width - 1, _THIN), _BAR, kind, tip=tip)
    if svg.measure(name, 11) + 8 < width and 'hatched' not in kind:
      page.text(x + 4, y + 19, name, size=11, kind='on')


def _legend(page, y, entries):
  """Swatches, each with the names and values of its color; the next y."""
  x = _MARGIN
  for kind, named in entries.items():
    words = ', '.join(f'{name} {value}' for name, value in named)
    width = 20 + svg.measure(words, 12)
    if x + width > _WIDTH - _MARGIN:
      x, y = _MARGIN, y + _LINE
    page.rect(x, y - 10, 12, 12, kind)
    page.text(x + 20, y, words, size=12)
    x += width + 16
  return y + _LINE
