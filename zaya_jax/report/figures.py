# SPDX-License-Identifier: Apache-2.0
"""The figures of runs, as data for page.js.

page.js draws one of the choices of a figure; the reader selects which.
`kind` says what a choice holds, besides its `label`:

- lines: `traces` of x and y, and `marks`, vertical lines with a text.
- heat: `x`, `y` (labels) and `z`, of which 100 is drawn neutral; with `unit`
  and `most`, rates from 0 to that.
- table: `columns` and `rows`; a cell is a number, a text, or a list of texts
  of which every second is marked.
- text: `text`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from zaya_jax.report import curves, data, incidents, records

_COLUMNS = 240  # Of the heat maps of all runs together.
_MARKS = 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
  """What a page shows under one heading.

  Attributes:
    id: in the address of the page.
    title: the heading.
    caption: what is drawn, for somebody who sees it for the first time.
    kind: see above.
    choices: see above.
    missing: what stands there if there are no choices.
    start: which of them is shown first.
    wide: whether it takes the whole width of a wide page.
  """

  id: str
  title: str
  caption: str
  kind: Literal['lines', 'heat', 'table', 'text']
  choices: list[dict[str, Any]]
  missing: str = ''
  start: int = 0
  wide: bool = False


def of_runs(runs: Sequence[records.Run]) -> list[Figure]:
  """All figures, in the order of the page; runs beside each other."""
  marks = [mark for run in runs for mark in _marks(runs, run)]
  made = {'experts': _experts(runs)}
  for one in curves.TABLE:
    choices = curves.draw(one, runs, marks)
    if choices or not one.optional:
      texts = {
        k: getattr(one, k) for k in ('id', 'title', 'caption', 'missing')
      }
      made[one.id] = Figure(kind='lines', choices=choices, **texts)
  order = 'loss bpb experts spread entropy throughput mfu lr grad time'
  return [
    *(made[name] for name in order.split() if name in made),
    # Alone in its row where there is no figure beside it.
    dataclasses.replace(_samples(runs), wide='mfu' not in made),
    _data(runs),
    *_kernels(runs),
    _incidents(runs),
  ]


def _marks(runs, run) -> list[dict[str, Any]]:
  """Vertical lines: incidents, phases, where a run went on for more steps."""
  entries = incidents.of_run(run)
  ends = [*incidents.continuations(run)[-_MARKS:], *incidents.phases(run)]
  return [
    {
      'x': entry['step'],
      'kind': 'continued' if entry in ends else 'incident',
      'place': runs.index(run) if len(runs) > 1 else None,
      'text': _label(runs, run, f'{entry["kind"]}: {entry["seen"]}'[:200]),
    }
    for entry in (*entries[-_MARKS:], *ends)
    if entry['step'] is not None
  ]


def heat(
  label: str,
  x: Sequence[float],
  percent_XT: np.ndarray,
  num_experts: int,
  x_title: str = 'step',
) -> dict[str, Any]:
  """A choice of a heat map: router classes, the skip class last, over x."""
  z = np.rint(percent_XT).astype(int).tolist()
  skip = 'skip' if any(z[-1]) else 'skip: none'
  labels = [f'expert {c}' if c < num_experts else skip for c in range(len(z))]
  return {'label': label, 'x': list(x), 'y': labels, 'z': z, 'x_title': x_title}


def _experts(runs: Sequence[records.Run]) -> Figure:
  choices = []
  for run in runs:
    if not (rows := _shares(run)):
      continue
    steps, shares_TNX = [row[0] for row in rows], np.stack([r[1] for r in rows])
    model = run.section('model')
    skips = bool(model) and model.get('skip') != 'off'
    experts = max(shares_TNX.shape[-1] - skips, 1)
    columns = min(len(rows), max(_COLUMNS // len(runs), 40))
    parts = np.array_split(np.arange(len(rows)), columns)
    ends = curves.short(steps[part[-1]] for part in parts)
    percent_TNX = np.stack([shares_TNX[part].mean(0) for part in parts])
    percent_TNX *= 100 * experts
    for n in range(percent_TNX.shape[1]):
      label = _label(runs, run, f'layer {n}')
      choices.append(heat(label, ends, percent_TNX[:, n].T, experts))
  return Figure(
    id='experts',
    wide=True,
    title='Expert load over time',
    caption='Tokens that chose each expert of a layer, in per cent of an even '
    'share, which is all tokens over the number of experts. Orange is too few, '
    'blue too many; an even share has the colour of the page. The last row is '
    'the skip class, which no expert computes: the greyer the more tokens.',
    kind='heat',
    choices=choices,
    missing='Nothing to draw: experts.jsonl has no load of the layers; an '
    'earlier version did not write it.',
  )


def _shares(run: records.Run) -> list[tuple[float, np.ndarray]]:
  """Steps and shares [N, X]; rows of another shape than the last are not."""
  rows = []
  for row in run.experts:
    try:
      share_NX = np.asarray(row['share'], np.float64)
    except (TypeError, ValueError, OverflowError):
      continue
    if share_NX.ndim == 2 and share_NX.size and np.all(abs(share_NX) <= 1):
      rows.append((row['step'], share_NX))
  return [row for row in rows if row[1].shape == rows[-1][1].shape]


def _samples(runs: Sequence[records.Run]) -> Figure:
  choices = [
    {'label': _label(runs, run, f'step {step}'), 'text': text}
    for run in runs
    for step, text in run.samples
  ]
  return Figure(
    id='samples',
    title='Samples',
    caption='What the model makes of --prompt, the prompt included.',
    kind='text',
    choices=choices,
    missing='There is no sample yet; --log.sample_every says how often, and '
    'the last step has one.',
    start=len(choices) - 1,
  )


def _data(runs: Sequence[records.Run]) -> Figure:
  whose = ['run'] if len(runs) > 1 else []
  rows = [
    [*(run.name for _ in whose), *(row[name] for name in data.COLUMNS)]
    for run in runs
    for row in run.data
  ]
  table = {'label': '', 'columns': [*whose, *data.COLUMNS], 'rows': rows}
  return Figure(
    id='data',
    wide=True,
    title='Data',
    caption='What was trained on, by ledger.jsonl: tokens of each source in '
    'each phase, and how often the source was read by its end. --mode=ledger '
    'proves it and names the documents.',
    kind='table',
    choices=[table] if rows else [],
    missing='There is no ledger.jsonl yet, or an earlier version has run.',
  )


def _incidents(runs: Sequence[records.Run]) -> Figure:
  names = ('step', 'kind', 'seen', 'done', 'time')
  whose = ['run'] if len(runs) > 1 else []
  rows = [
    [*(run.name for _ in whose), *(entry[name] for name in names)]
    for run in runs
    for entry in incidents.of_run(run)
  ]
  table = {'label': '', 'columns': [*whose, *names], 'rows': rows}
  return Figure(
    id='incidents',
    wide=True,
    title='Incidents',
    caption='Those of incidents.jsonl; restarts and skipped steps also from '
    'metrics.jsonl.',
    kind='table',
    choices=[table] if rows else [],
    missing='None: no restart, no skipped step, no alarm.',
  )


def _kernels(runs: Sequence[records.Run]) -> list[Figure]:
  """Of runs with traced steps alone."""
  choices = []
  for run in runs:
    for one in run.kernels:
      steps = f'steps {one["first"]} to {one["last"]}'
      for name, title in (('kinds', 'by kind'), ('longest', 'longest')):
        rows = [
          [what, f'{1e3 * took:.3f}', f'{share:.1%}', f'{calls:.1f}']
          for what, took, share, calls in one[name]
        ]
        columns = ['kernels', 'ms of a step', 'share', 'calls']
        label = _label(runs, run, f'{steps}, {title}')
        choices.append({'label': label, 'columns': columns, 'rows': rows})
  figure = Figure(
    id='kernels',
    wide=True,
    title='Kernels',
    caption='What devices ran in the steps that --log.profile traced, of a '
    'step and a device; on a CPU the threads together. The trace itself, for '
    'the profiler of JAX, is in the folder profile.',
    kind='table',
    choices=choices,
  )
  return [figure] if choices else []


def _label(runs: Sequence[records.Run], run: records.Run, what: str) -> str:
  return what if len(runs) == 1 else f'{run.name}, {what}'
