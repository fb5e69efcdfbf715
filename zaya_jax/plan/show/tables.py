# SPDX-License-Identifier: Apache-2.0
"""The plan as tables: bold titles, quiet lines, numbers right."""

from collections.abc import Iterable, Sequence
from typing import Any

import rich.console
import rich.table

from zaya_jax.metrics import text

_WIDTH = 100  # Columns in a pipe or a file; a terminal has its own.
Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]  # Title, columns.


def show(plan: dict[str, Any]) -> None:
  """Prints the plan of `planner.make`."""
  console = print_all(
    (
      _summary(plan),
      _flops(plan),
      _memory(plan),
      _collectives(plan),
      _time(plan),
      *_compiled(plan),
      rules('sizes on MI300X', plan['lint']),
    )
  )
  console.print('assumptions', style='bold')
  for sentence in plan['assumptions']:
    console.print(f'  {sentence}', style='dim')


def print_all(
  found: Iterable[Table], width: int = _WIDTH
) -> rich.console.Console:
  """Prints tables that have rows; returns where."""
  console = rich.console.Console(highlight=False, markup=False)
  if not console.is_terminal:
    console = rich.console.Console(highlight=False, markup=False, width=width)
  for title, columns, rows in found:
    if rows:
      _table(console, title, columns, rows)
  return console


def _table(console, title, columns, rows):
  table = rich.table.Table(box=None, header_style='dim', pad_edge=False)
  for i, column in enumerate(columns):
    left = not i or column in ('over', 'rule', 'from', '')
    table.add_column(column, justify='left' if left else 'right')
  for row in rows:
    table.add_row(*row)
  console.print(title, style='bold')
  console.print(table)
  console.print()


def _summary(plan):
  count, time, muon = plan['parameters'], plan['time'], plan['muon']
  tokens, saved, data = plan['tokens'], plan['checkpoint'], plan['data']
  short = text.short
  rows = (
    f'parameters | {count["total"]:,} | {count["active"]:,} active',
    f'tokens of a step | {tokens["step"]:,} | {tokens["device"]:,} on a '
    f'device, {tokens["parts"]} part(s)',
    f'step | {seconds(time["step"])} | {_bar(time)}, '
    f'{short(time["tokens_per_second"])} tokens/s, '
    f'{short(time["tokens_per_day"])} a day, MFU {time["mfu"]:.1%}',
    f'{short(time["budget_tokens"])} tokens | {_days(time["budget_days"])} | '
    f'{short(time["device_hours"])} GPU-hours',
    f'Muon | {short(muon["flops"])}FLOP | {muon["share_of_flops"]:.1%} of '
    f'FLOPs, {muon["share_of_time"]:.1%} of time; {muon["matrices"]:,} '
    f'matrices, {short(muon["flops_busiest_device"])}FLOP on the busiest '
    'device',
    f'checkpoint | {nbytes(saved["bytes"])} | '
    f'{nbytes(saved["bytes_per_device"])} from each device{_copied(saved)}',
    f'decoding | {nbytes(plan["cache_bytes_per_token"])} | of keys and values '
    'for each token of a context',
    f'data | {data["iops"]:,.0f} IOPS | {data["pages_per_step"]:,.0f} pages a '
    f'step; {data["iops_limit"]:,} IOPS suffice down to '
    f'{seconds(data["step_s_at_limit"])} a step',
  )
  return title(plan), ('', ' ', ''), [row.split(' | ') for row in rows]


def _copied(saved):
  took = saved['copy_s']
  return '' if took is None else f', copied to its host in {seconds(took)}'


def _bar(time):
  low, high = time['step_range']
  step = time['step']
  return f'{low / step - 1:+.0%} to {high / step - 1:+.0%}'


def _flops(plan):
  terms = dict(plan['flops_per_token'])
  total = terms['total']
  rows = [
    (name, f'{value:,.0f}', f'{value / total:.1%}')
    for name, value in terms.items()
  ]
  title = 'FLOPs to train on a token, forward and backward, attention causal'
  return title, ('', 'FLOP', 'share'), rows


def _memory(plan):
  held = plan['memory']
  kinds = (
    'parameters', 'optimizer', 'weights', 'gradients', 'activations', 'logits',
    'temporary', 'total',
  )  # fmt: skip
  share = lambda value: f'{value / held["capacity"]:.1%}'
  rows = [(kind, nbytes(held[kind]), share(held[kind])) for kind in kinds]
  if plan['devices'] > 1:
    rows.insert(2, ('  not divided', nbytes(held['optimizer_whole']), ''))
  spare = held['capacity'] - held['total']
  rows.append(('left' if spare >= 0 else 'MISSING', nbytes(abs(spare)), ''))
  either = held['activations_by_remat']
  title = (
    f'memory of a device (--model.remat={held["remat"]}; activations are '
    + ', '.join(f'{nbytes(size)} with {name}' for name, size in either.items())
    + ')'
  )
  return title, ('', 'bytes', f'of {nbytes(held["capacity"])}'), rows


def _collectives(plan):
  rows = [
    f'{c["kind"]} {c["what"]} | {" x ".join(c["axes"])} | {c["count"]:,} | '
    f'{nbytes(c["bytes"])} | {seconds(c["seconds"])} | '
    f'{c["source"]} | {c["hidden"] and "hidden"}'.split(' | ')
    for c in plan['collectives']
  ]
  columns = ('', 'over', 'calls', 'bytes', 'time', 'from', '')
  return 'collectives of a step, on one device', columns, rows


def _time(plan):
  """Parts with their seconds at best and at worst, and whence they come."""
  time = plan['time']
  took = lambda part: [seconds(part), f'{part / time["step"]:.1%}']
  bar = lambda low, high: f'{seconds(low)} to {seconds(high)}'
  rows = [
    [
      p['name'], text.short(p['flops']), nbytes(p['bytes']),
      *took(p['seconds']), bar(p['low'], p['high']), p['source'],
    ]
    for p in (*time['parts'], *time['update'])
  ]  # fmt: skip
  rows.append(['network, not hidden', '', '', *took(time['network_exposed'])])
  rows.append(['step', '', '', *took(time['step']), bar(*time['step_range'])])
  rows = [row + [''] * (7 - len(row)) for row in rows]
  columns = ('', 'FLOP', 'bytes', 'time', 'share', 'best to worst', 'from')
  known = plan['machine']
  title = 'time of a step, by data sheets: what the machine allows'
  if known:
    title = f'time of a step, by what was measured on {known["name"]}'
  return title, columns, rows


def _compiled(plan):
  """What the compiler says beside the formulas, then its kernels."""
  found = plan.get('compiled')
  if not found:
    return
  rows = [
    (
      name,
      nbytes(formula),
      nbytes(real),
      f'{real / formula - 1:+.1%}' if formula and real < 10 * formula else '',
    )
    for name, (formula, real) in found['compare'].items()
  ]
  columns = ('', 'formula', 'compiler', 'difference')
  yield (
    f'compiled by XLA:ROCm for gfx942 in {seconds(found["seconds"])}, with '
    f'{nbytes(found["host_bytes"])} of this machine',
    columns,
    rows,
  )
  yield rules('contracts of the compiled step', found['contracts'])
  kernels = [
    (name, f'{k["sites"]:,}', f'{k["launches"]:,}')
    for name, k in found['kernels'].items()
  ]
  yield 'kernels of a step', ('', 'in the text', 'launches, at least'), kernels


def rules(title: str, found: Sequence[dict[str, Any]]) -> Table:
  """What a step or its sizes must be, and what is."""
  rows = [
    (
      'ok' if f['good'] else 'CHANGE',
      f['rule'] if f['good'] else f'{f["rule"]}. {f["advice"]}',
      f['value'],
    )
    for f in found
  ]
  return title, ('', 'rule', 'here'), rows


def _days(number: float) -> str:
  """3.6 days, 3.3 hours, 6.6 minutes, or seconds."""
  for unit, parts in (('days', 1), ('hours', 24), ('minutes', 1440)):
    if number * parts >= 1:
      return f'{number * parts:,.1f} {unit}'
  return seconds(number * 86_400)


def title(plan: dict[str, Any]) -> str:
  """What is planned: plan for 8 x H200: replica 4 x fsdp 2."""
  mesh = ' x '.join(f'{a} {n}' for a, n in plan['mesh'].items() if n > 1)
  chip = plan['chip']['name']
  return f'plan for {plan["devices"]:,} x {chip}' + (mesh and f': {mesh}')


def nbytes(number: float) -> str:
  """35.4GB."""
  return f'{text.short(number)}B'


def seconds(number: float) -> str:
  """547 ms; hours, minutes and seconds when long."""
  if number >= 1000:
    return text.duration(number)
  for scale, unit in ((1, 's'), (1e3, 'ms')):
    if number * scale >= 1:
      return f'{number * scale:,.3g} {unit}'
  return f'{number * 1e6:,.0f} us'
