# SPDX-License-Identifier: Apache-2.0
"""The curves of a run: numbers of metrics.jsonl over the steps."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from zaya_jax.report import records

_POINTS = 1000  # Of a curve.
# Not in metrics.jsonl, but made of what is.
_COMPUTE, _SAVING = 'time/compute_s', 'time/saving_s'
_ZLIB = 'val/zlib_bpb'  # A line, as it is the same at every evaluation.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curves:
  """A figure of curves, each a number of metrics.jsonl."""

  id: str
  title: str
  y: str
  curves: dict[str, str]  # Name of the number: what it is called.
  caption: str
  log: bool = False
  robust: bool = False  # Whether the axis may leave out the highest values.
  tick: str = ''  # How d3 formats the numbers of the axis.
  marks: bool = False
  optional: bool = False  # Whether there is no figure without the numbers.

  @property
  def missing(self) -> str:
    """What stands there if no run has the numbers."""
    names = ', '.join(key for key in self.curves if key not in _MADE)
    return (
      f'Nothing to draw: metrics.jsonl has no {names} yet, or is of a version '
      'that did not write it.'
    )


TABLE = (
  Curves(
    id='loss',
    title='Loss',
    y='nats per token',
    curves={'train/loss': 'train', 'val/loss': 'held out'},
    caption='Next-token cross-entropy: of training the mean of the steps '
    'between two points, of held-out text the whole of it. Vertical lines are '
    'incidents, restarts and phases. The axis may leave out the first, highest '
    'losses; a double click shows them.',
    robust=True,
    marks=True,
  ),
  Curves(
    id='bpb',
    title='Held-out bits per byte',
    y='bits per byte',
    curves={'val/bpb': 'model', _ZLIB: 'zlib -9'},
    caption='The held-out loss in a unit that does not depend on the '
    'tokenizer, beside what zlib needs for the same text. --eval.every says '
    'how often. The axis may leave out the highest values; a double click '
    'shows them.',
    robust=True,
  ),
  Curves(
    id='throughput',
    title='Throughput',
    y='tokens per second',
    curves={'throughput/tokens_per_second': 'all devices'},
    tick='~s',
    caption='Of training alone: compiling, evaluations, samples and saves are '
    'not counted.',
  ),
  Curves(
    id='mfu',
    title='Model FLOP/s utilization',
    y='share of the peak',
    curves={'throughput/mfu': 'MFU'},
    tick='~%',
    caption='FLOP that the model needs (recomputation not counted), over what '
    'the devices could do at their peak.',
    optional=True,
  ),
  Curves(
    id='lr',
    title='Learning rate',
    y='learning rate',
    curves={'optim/lr': 'learning rate'},
    caption='Shared by Muon and AdamW.',
  ),
  Curves(
    id='grad',
    title='Gradient norm',
    y='norm',
    curves={'optim/grad_norm': 'gradient norm'},
    caption='Over all parameters, before any scaling; the axis is logarithmic.',
    log=True,
    marks=True,
  ),
  Curves(
    id='spread',
    title='Load of the experts',
    y='1 = an even share',
    curves={
      'moe/load_max': 'most loaded expert',
      'moe/load_min': 'least loaded expert',
      'moe/skip': 'share of tokens that skip',
    },
    caption='The extremes over all layers and steps between two points. 1 is '
    'an even share; 0 is an expert that no token chose.',
  ),
  Curves(
    id='entropy',
    title='Router entropy',
    y='share of ln E',
    curves={'moe/entropy': 'mean over layers'},
    caption='Entropy of the load over its greatest value: 1 is an even load, '
    '0 one expert for all tokens.',
  ),
  Curves(
    id='time',
    title='Where the seconds of a step go',
    y='seconds',
    curves={
      _COMPUTE: 'compute',
      'time/data_s': 'waiting for data',
      _SAVING: 'saving, a step',
    },
    caption='Compute is a step without its wait for data. Of a save the '
    'seconds that training stood still, divided by the steps since the save '
    'before. The axis is logarithmic.',
    log=True,
  ),
)


def draw(
  figure: Curves, runs: Sequence[records.Run], marks: list[dict[str, Any]]
) -> list[dict[str, Any]]:
  """The choice of a figure of `TABLE`; none if no run has its numbers.

  Args:
    figure: of `TABLE`.
    runs: that are drawn together.
    marks: where vertical lines go and what they say, if the figure has any.
  """
  traces, values, levels = [], [], {}
  for r, run in enumerate(runs):
    for i, (key, name) in enumerate(figure.curves.items()):
      found = _MADE[key](run) if key in _MADE else _values(run, key)
      if not found:
        continue
      x, y = [*found], [*found.values()]
      # Colour and dash: of one run what is drawn, of several whose and what.
      one, alone = len(runs) == 1, len(figure.curves) == 1
      told = name if one else run.name if alone else f'{run.name}: {name}'
      trace: dict[str, Any] = {'name': told, 'place': [i, 0] if one else [r, i]}
      values.append(y)
      if key == _ZLIB and len(set(y)) == 1:
        if same := levels.get(y[0]):  # Of a run with the same text.
          end = max(same['x'][1], run.step)
          same |= {'name': name, 'place': None, 'x': [0, end]}
          continue
        trace |= {'x': [0, run.step], 'y': short(y[:1] * 2), 'level': True}
        levels[y[0]] = trace
      else:
        trace |= _points(x, y)
      traces.append(trace)
  if not traces:
    return []
  y = {'y_title': figure.y, 'log': figure.log, 'tick': figure.tick}
  x = {'x_title': 'step', 'marks': marks if figure.marks else []}
  axis = robust_range(values) if figure.robust else None
  return [{'label': '', 'traces': traces, **x, **y, 'range': axis}]


def robust_range(values: Sequence[Sequence[float]]) -> list[float] | None:
  """The ends of an axis that a few high values do not flatten.

  It shows nine of ten values, and half of each curve's. None: an axis for all
  values is as good.
  """
  whole = np.concatenate(values)
  low = whole.min()
  high = max(np.quantile(whole, 0.9), *map(np.median, values))
  if len(whole) < 10 or whole.max() - low <= 1.5 * (high - low) or low == high:
    return None
  room = 0.08 * (high - low)
  return short([low - room, high + room])


def _points(x, y) -> dict[str, list]:
  """What is drawn of a curve: some of its points, and means if some are not."""
  few_x, few_y = thin(x, y)
  if len(few_x) == len(x):
    return {'x': few_x, 'y': few_y}
  parts = np.array_split(np.arange(len(x)), _POINTS // 5)
  arrays = (np.asarray(a, np.float64) for a in (x, y))
  mean = [short(a[part].mean() for part in parts) for a in arrays]
  return {'x': few_x, 'y': few_y, 'mean': mean}


def thin(
  x: Iterable[float], y: Iterable[float]
) -> tuple[list[float], list[float]]:
  """About `_POINTS` points at most, with the extremes of every stretch."""
  x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
  if len(x) > _POINTS:
    kept = {0, len(x) - 1}
    for part in np.array_split(np.arange(len(x)), _POINTS // 2):
      kept |= {int(part[np.argmin(y[part])]), int(part[np.argmax(y[part])])}
    index = sorted(kept)
    x, y = x[index], y[index]
  return short(x), short(y)


def short(values: Iterable[float]) -> list[float]:
  """Numbers with six digits, whole ones without a point."""
  rounded = (float(f'{value:.6g}') for value in values)
  return [int(v) if v.is_integer() and abs(v) < 1e15 else v for v in rounded]


def _values(run: records.Run, key: str) -> dict[float, float]:
  """The number by step; of a repeated step the last one."""
  return {row['step']: value for row, value in run.numbers(key)}


def _compute(run: records.Run) -> dict[float, float]:
  data_s = _values(run, 'time/data_s')
  return {
    step: max(step_s - data_s.get(step, 0), 0)
    for step, step_s in _values(run, 'time/step_s').items()
  }


def _saving(run: records.Run) -> dict[float, float]:
  found = _values(run, 'time/checkpoint_s')
  spans = np.diff([0, *found])
  return {
    step: seconds / max(span, 1)
    for (step, seconds), span in zip(found.items(), spans, strict=True)
  }


_MADE = {_COMPUTE: _compute, _SAVING: _saving}
