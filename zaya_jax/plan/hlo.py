# SPDX-License-Identifier: Apache-2.0
"""What a compiled program sends and runs, read from its text (scheduled HLO).

The body of a loop counts as often as it runs, where the compiler knows that;
the loops over blocks of an expert's tokens, whose number it cannot know, count
once.
"""

import collections
import math
import re

_KINDS = (
  'all-reduce', 'all-gather', 'reduce-scatter', 'all-to-all',
  'ragged-all-to-all', 'collective-permute',
)  # fmt: skip
_COMPUTATION = re.compile(r'^(?:ENTRY )?%?([\w.-]+) \(.*\{$')
_INSTRUCTION = re.compile(r'^\s+(?:ROOT )?%?[\w.-]+ = (.*)$')
_OPERATION = re.compile(r'^(\(.*?\)|\S+) ([a-z][\w-]*)\(')
_ARRAY = re.compile(r'\b([a-z]+\d*\w*)\[([\d,]*)\]')
_BODY = re.compile(r'\bbody=%?([\w.-]+)')
_CALLED = re.compile(r'\b(?:calls|to_apply)=%?([\w.-]+)')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_TARGET = re.compile(r'custom_call_target="([^"]+)"')


def read(text: str) -> dict[str, dict[str, dict[str, float]]]:
  """Collectives and kernels of one run of a program.

  Args:
    text: `as_text()` of a compiled function.

  Returns:
    collectives: by kind, calls and bytes (what comes out of each call, on one
    device); kernels: by kind, how often they are launched and how many there
    are in the text.
  """
  computations, entry = _split(text)
  collectives = collections.defaultdict(lambda: {'calls': 0, 'bytes': 0})
  kernels = collections.defaultdict(lambda: {'launches': 0, 'sites': 0})

  def walk(name: str, times: int) -> None:
    for line in computations.get(name, ()):
      found = _OPERATION.match(line)
      if not found:
        continue
      shape, operation = found.groups()
      kind = operation.removesuffix('-start')
      if kind in _KINDS:
        collectives[kind]['calls'] += times
        collectives[kind]['bytes'] += times * _bytes(shape, operation)
      elif kernel := _kernel(operation, line):
        kernels[kernel]['launches'] += times
        kernels[kernel]['sites'] += 1
      if operation == 'while':
        trips = _TRIPS.search(line)
        walk(_BODY.search(line)[1], times * int(trips[1] if trips else 1))
      elif operation in ('call', 'async-start') and (
        called := _CALLED.search(line)
      ):
        walk(called[1], times)

  walk(entry, 1)
  return {'collectives': dict(collectives), 'kernels': dict(kernels)}


def _split(text: str) -> tuple[dict[str, list[str]], str]:
  """Lines of each computation, without their names, and the entry's name."""
  computations, lines, entry = {}, [], ''
  for line in text.splitlines():
    if found := _COMPUTATION.match(line):
      lines = computations.setdefault(found[1], [])
      entry = found[1] if line.startswith('ENTRY') else entry
    elif found := _INSTRUCTION.match(line):
      # Comments within tuples, as /*index=5*/, have an equals sign.
      lines.append(re.sub(r'/\*.*?\*/', '', found[1]))
  return computations, entry


def _kernel(operation: str, line: str) -> str | None:
  if operation == 'fusion':
    return 'fusion'
  if operation == 'custom-call':
    return _TARGET.search(line)[1]
  return operation if operation in ('sort', 'dot', 'convolution') else None


def _bytes(shape: str, operation: str) -> int:
  """Of the result; that of an asynchronous gather stands behind its input."""
  sizes = [
    math.prod(int(n) for n in dims.split(',') if n) * _width(kind)
    for kind, dims in _ARRAY.findall(shape)
  ]
  if operation.endswith('-start') and shape.startswith('('):
    sizes = sizes[len(sizes) // 2 :]
  return sum(sizes)


def _width(kind: str) -> int:
  """Bytes of an element: bf16, f32, s8, pred, f8e4m3fnuz."""
  bits = re.search(r'\d+', kind)
  return max(1, int(bits[0]) // 8) if bits else 1
