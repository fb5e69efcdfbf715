# SPDX-License-Identifier: Apache-2.0
"""The head of a page: what a person asks first of a run."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from pipelines import errors
from pipelines.shards import mixture
from zaya_jax import config as config_lib
from zaya_jax.metrics import text
from zaya_jax.model import flops
from zaya_jax.report import records


def status(run: records.Run) -> str:
  """Whether the run goes on, and where it is."""
  total = run.num_steps
  place = f'step {run.step:,}' + (f' of {total:,}' if total else '')
  if not run.rows:
    state = 'started, no metrics yet' if run.running else 'no metrics'
  elif total and run.step >= total:
    state = f'done: {place}'
  else:
    state = f'{"running" if run.running else "stopped"}: {place}'
  if run.changed_at:
    state += f'; metrics of {records.when(run.changed_at)}'
  return state


def table(runs: Sequence[records.Run]) -> list[list[str]]:
  """A row for each fact that any run has: its name, then a text for each run.

  The page of one run shows its status elsewhere.
  """
  facts = {'status': status, **_FACTS} if len(runs) > 1 else _FACTS
  rows = [[name, *map(fact, runs)] for name, fact in facts.items()]
  return [row for row in rows if any(row[1:])]


def cautions(runs: Sequence[records.Run]) -> list[str]:
  """What a reader who compares the runs must know."""
  zlib = {run.name: _newest(run, 'val/zlib_bpb', '.4f') for run in runs}
  if len({value for value in zlib.values() if value}) < 2:
    return []
  told = ', '.join(
    f'{value} in {name}' for name, value in zlib.items() if value
  )
  return [
    'The held-out texts differ, so held-out losses and bits per byte cannot be '
    f'compared. Bits per byte of zlib: {told}.'
  ]


def _newest(run: records.Run, key: str, form: str) -> str:
  found = run.numbers(key)
  return format(found[-1][1], form) if found else ''


def _best(run: records.Run) -> str:
  scored = [(value, row['step']) for row, value in run.numbers('val/bpb')]
  if not scored:
    return ''
  zlib = _newest(run, 'val/zlib_bpb', '.3f')
  beside = f' (zlib -9: {zlib})' if zlib else ''
  return '{:.3f} at step {:,.0f}'.format(*min(scored)) + beside


def _phases(run: records.Run) -> str:
  """Those that the run has begun, in their order."""
  names = dict.fromkeys(row.get('phase') for row in run.rows)
  return ', '.join(name for name in names if isinstance(name, str))


def _tokens(run: records.Run) -> str:
  tokens = _newest(run, 'tokens', '.0f')
  return tokens and text.short(float(tokens))


def _start(run: records.Run) -> str:
  """When the first process was started, and from which weights."""
  began = next((at for row in run.rows if (at := records.began(row))), None)
  source = run.config.get('restore')
  weights = f'from {source}' if source else 'from new weights'
  when = '' if began is None else f'{records.when(began)}, '
  return f'{when}{weights}' if run.config else when.removesuffix(', ')


def _duration(run: records.Run) -> str:
  """The seconds of all processes together."""
  clocks = [seconds for _, seconds in run.numbers('time/elapsed_s')]
  # The clock of a process starts at zero.
  ends = [a for a, b in itertools.pairwise([*clocks, -1.0]) if b < a]
  many = f', in {len(ends)} processes' if len(ends) > 1 else ''
  return text.duration(sum(ends)) + many if ends else ''


def _rate(run: records.Run) -> str:
  rate = _newest(run, 'throughput/tokens_per_second', '.6g')
  mfu = _newest(run, 'throughput/mfu', '.1%')
  beside = f', MFU {mfu}' if mfu else ''
  return rate and f'{text.short(float(rate))} tokens per second{beside}'


def _memory(run: records.Run) -> str:
  """The most of any process: each row tells that since its start."""
  peaks = [value for _, value in run.numbers('memory/peak_bytes')]
  return f'{max(peaks) / 1e9:.3g} GB of a device at most' if peaks else ''


def _devices(run: records.Run) -> str:
  found = run.facts.get('devices')
  if not isinstance(found, dict):
    return ''
  return f'{found.get("count")} x {found.get("kind")}'


def _model(run: records.Run) -> str:
  if not (model := run.section('model')):
    return ''
  return (
    f'{model.get("num_layers")} layers, width {model.get("d_model")}, '
    f'{model.get("num_experts")} experts of width {model.get("d_expert")}'
  )


def _parameters(run: records.Run) -> str:
  names = [field.name for field in dataclasses.fields(config_lib.ModelConfig)]
  model: dict[str, Any] = {
    name: tuple(value) if isinstance(value, list) else value
    for name, value in run.section('model').items()
    if name in names
  }
  try:
    count = flops.parameters(config_lib.ModelConfig(**model))
  except (TypeError, ValueError, OverflowError, config_lib.UsageError):
    return ''
  shown = f'{count.total:,}, {count.active:,} active without embedding'
  return shown if model else ''


def _data(run: records.Run) -> str:
  if not (data := run.section('data')):
    return ''
  folders = data.get('dir')
  source = _mixture(folders) if isinstance(folders, list) else ''
  return (
    f'{source or data.get("input")}; a step is {data.get("batch_size")} x '
    f'{data.get("seq_len")} tokens'
  )


def _mixture(folders: list[Any]) -> str:
  """The folders; of several, with the share of windows that each one gives."""
  names = [str(folder) for folder in folders]
  if len(names) < 2:
    return ', '.join(names)
  try:
    parts = mixture.parse(names)
  except errors.DataError:
    return ', '.join(names)
  total = sum(part.weight for part in parts)
  shares = (
    f'{p.directory} ({float(100 * p.weight / total):.3g}%)' for p in parts
  )
  return ', '.join(shares)


_FACTS = {
  'held-out bits per byte': _best,
  'training loss': lambda run: _newest(run, 'train/loss', '.4f'),
  'tokens trained on': _tokens,
  'phases': _phases,
  'throughput': _rate,
  'start': _start,
  'duration': _duration,
  'data': _data,
  'model': _model,
  'parameters': _parameters,
  'devices': _devices,
  'memory': _memory,
  'steps skipped': lambda run: _newest(run, 'optim/skipped', '.0f'),
}
