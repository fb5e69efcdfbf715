# SPDX-License-Identifier: Apache-2.0
"""What a compiled program sends between devices, read off its text."""

import functools
import math
import re

import numpy as np

# Bytes that a device sends per byte it gives to a collective among n devices;
# that of an all-reduce holds for ring and tree algorithms alike.
SENT = {
  'all-reduce': lambda n: 2 * (n - 1) / n,
  'collective-permute': lambda n: 1,
}
_ITEM_BYTES = {'pred': 1, 'bf16': 2, 'f16': 2, 'f32': 4, 's32': 4, 'u32': 4}


def count(hlo: str, devices: int) -> tuple[float, float]:
  """What one run of a program makes each device send.

  Args:
    hlo: text of a compiled program.
    devices: of each collective.

  Returns:
    Bytes that a device gives to collectives, and bytes that it sends for them.

  Raises:
    ValueError: if a collective is not among `SENT`, or if a loop does not say
      how often it runs.
  """
  bodies, entry = _computations(hlo)

  @functools.cache
  def of(name):
    total = np.zeros(2)
    shapes = {}
    for line, left, shape, op, operands in _instructions(bodies[name]):
      shapes[left] = shape
      if op.endswith(('-done', '-update')):
        continue
      if kind := _collective(op):
        payload = sum(_bytes(shapes[operand]) for operand in operands)
        total += payload * np.array([1, SENT[kind](devices)])
      calls = re.findall(r'\b(?:calls|to_apply|body)=%?([\w.-]+)', line)
      total += _trips(op, line) * sum(map(of, calls))
    return total

  payload, sent = of(entry)
  return float(payload), float(sent)


def _computations(hlo):
  """The lines of each computation, and the name of the first to run."""
  bodies, entry, lines = {}, None, []
  for line in hlo.splitlines():
    header = re.match(r'(ENTRY )?%?([\w.-]+) \(.*\{$', line)
    if header:
      lines = bodies[header[2]] = []
      entry = header[2] if header[1] else entry
    else:
      lines.append(line)
  return bodies, entry


def _instructions(lines):
  """Yields line, name, shape, operation and the names of its operands."""
  for line in lines:
    found = re.match(
      r'\s+(?:ROOT )?%(\S+) = (.*?) ([a-z][\w-]*)\((.*?)\)', line
    )
    if found:  # Otherwise the rest of a long constant.
      name, shape, op, operands = found.groups()
      yield line, name, shape, op, re.findall(r'%([\w.-]+)', operands)


def _collective(op: str) -> str | None:
  kind = op.removesuffix('-start')
  if kind in SENT:
    return kind
  if kind.startswith(('all-', 'collective-', 'reduce-scatter', 'ragged-')):
    raise ValueError(f'traffic cannot count the bytes of {op}.')
  return None


def _bytes(shape: str) -> int:
  return sum(
    _ITEM_BYTES[dtype] * math.prod(int(d) for d in dims.split(',') if d)
    for dtype, dims in re.findall(r'(\w+)\[([\d,]*)\]', shape)
  )


def _trips(op: str, line: str) -> int:
  if op != 'while':
    return 1
  trips = re.search(r'"known_trip_count":\{"n":"(\d+)"', line)
  if not trips:
    raise ValueError(f'traffic: a loop of unknown length: {line.strip()}')
  return int(trips[1])
