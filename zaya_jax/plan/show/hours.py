# SPDX-License-Identifier: Apache-2.0
"""What --plan.hours has found: a table, or JSON."""

import json
from typing import Any

from zaya_jax.metrics import text
from zaya_jax.plan.show import tables

_NONE = (
  'no law was fitted, so no loss is expected: python -m benchmarks.dial '
  '--law=zaya_jax/plan/law.toml'
)
_WHAT = {
  'active': 'active parameters',
  'total': 'parameters',
  'bytes': 'bytes of text',
  'context': 'bytes of a row',
}


def show(found: dict[str, Any], as_json: bool) -> None:
  """Prints the result of `hours.find`."""
  if as_json:
    print(json.dumps(found))
    return
  short = text.short
  ratio = found['tokens'] / found['active']
  rows = (
    ('dial', f'{found["dial"]}', 'layers'),
    (
      'tokens',
      short(found['tokens']),
      f'{ratio:.3g} for each active parameter, {found["steps"]:,} steps of '
      f'{tables.seconds(found["step"])} as planned',
    ),
    (
      'parameters',
      short(found['parameters']),
      f'{short(found["active"])} active',
    ),
    (
      'memory',
      tables.nbytes(found['memory']),
      f'of {tables.nbytes(found["capacity"])}',
    ),
    ('loss', *expected(found['law'])),
  )
  chip = found['chip'].upper()
  title = f'{found["hours"]:g} hours on {found["devices"]:,} x {chip}'
  tables.print_all([(title, ('', ' ', ''), rows)])
  print(f'--dial={found["dial"]} --tokens={found["tokens"]}, which stand for')
  for name, value in found['flags'].items():
    print(f'--{name}={value}')


def expected(law: dict[str, Any] | None) -> tuple[str, str]:
  """The loss, and how far it is to be trusted."""
  if law is None:
    return '', _NONE
  words = [f'bits per byte, by {law["about"].get("text", "a law")}']
  words.append(f'the largest run, held out, was {law["held_out"]:.1%} off')
  words += [
    f'extrapolated to {times:.3g} times the {_WHAT[name]} of its '
    f'{"largest" if times > 1 else "smallest"} run'
    for name, times in law['beyond'].items()
  ]
  return f'{law["bits_per_byte"]:.4f}', '; '.join(words)
