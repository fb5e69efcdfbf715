# SPDX-License-Identifier: Apache-2.0
"""What a compiled program sends, runs and holds, read from its scheduled HLO.

The body of a loop counts as often as it runs, where the compiler knows that;
the loops over blocks of an expert's tokens, whose number it cannot know, count
once. Each branch counts as if it were taken.
"""

import collections
import dataclasses
import math
import re
from typing import Any

_KINDS = (
  'all-reduce', 'all-gather', 'reduce-scatter', 'all-to-all',
  'ragged-all-to-all', 'collective-permute',
)  # fmt: skip
_COMPUTATION = re.compile(r'^(?:ENTRY )?%?([\w.-]+) \(.*\{$')
_INSTRUCTION = re.compile(r'^\s+(?:ROOT )?%?([\w.-]+) = (.*)$')
_OPERATION = re.compile(r'^(\(.*?\)|\S+) ([a-z][\w-]*)\(([^()]*)')
_ARRAY = re.compile(r'\b([a-z]+\d*\w*)\[([\d,]*)\]')
_CALLED = re.compile(r'\b(?:calls|to_apply|body)=%?([\w.-]+)')
# Libraries' products of matrices, and our kernels, which are large; the others
# that a program calls, as sorts, are not.
_PRODUCT = re.compile('gemm|matmul|conv|fmha|zaya_ops')
_BRANCHES = re.compile(
  r'\bbranch_computations=\{([^}]*)\}|\b(?:true|false)_computation=([\w.%-]+)'
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_TARGET = re.compile(r'custom_call_target="([^"]+)"')
_NAME = re.compile(r'op_name="([^"]*)"')
# {{0,1},{2,3}}, [2,4]<=[8], or axes of a mesh: mesh['a'=2,'b'=4] {'b'}.
_LISTED = re.compile(r'replica_groups=\{\{([\d,]*)\}')
_PAIRS = re.compile(r'source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}')
_IOTA = re.compile(r'replica_groups=\[\d+,(\d+)\]')
_AXES = re.compile(r'replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Message:
  """One collective of the text.

  Attributes:
    kind: of collective.
    calls: in one run of the program.
    bytes: of all calls, on one device: the larger of what goes in and what
      comes out; of a ragged one, the smaller, for the other is room.
    elements: the same.
    dtype: of what is sent; several are joined by '+'.
    group: devices that take part, in each group; 0: all there are.
    scope: where the program asked for it: names of its loops, then its own.
    loops: how often each loop around it runs, the outermost first.
    hidden: whether it is started, and a product of matrices, or a loop with
      one, runs before it is waited for. What only moves bytes is too short.
  """

  kind: str
  calls: int
  bytes: int
  elements: int
  dtype: str
  group: int
  scope: str
  loops: tuple[int, ...]
  hidden: bool


def read(text: str) -> dict[str, Any]:
  """Collectives, kernels and arrays of one run of a program.

  Args:
    text: `as_text()` of a compiled function.

  Returns:
    messages: a dict of each `Message`; collectives: their calls and bytes by
    kind; exposed: bytes of those that nothing hides, by kind; kernels: by kind,
    how often they are launched and how many there are in the text; arrays: all
    types and shapes in memory, as 'f32[8,2048]';
    scopes: where the program asked for its loops and for others' kernels.
  """
  program = _Program(*_split(text))
  program.walk(program.entry, ())
  collectives = collections.defaultdict(lambda: {'calls': 0, 'bytes': 0})
  for message in program.messages:
    for name in ('calls', 'bytes'):
      collectives[message.kind][name] += getattr(message, name)
  exposed: dict[str, int] = collections.Counter()
  for message in program.messages:
    exposed[message.kind] += 0 if message.hidden else message.bytes
  return {
    'messages': [dataclasses.asdict(m) for m in program.messages],
    'collectives': dict(collectives),
    'exposed': dict(exposed),
    'kernels': dict(program.kernels),
    'arrays': sorted(program.arrays),
    'scopes': sorted(program.scopes),
  }


class _Program:
  """Walks through the computations that run, in their order."""

  def __init__(self, computations, entry):
    self.computations, self.entry = computations, entry
    self.messages, self.arrays, self.scopes = [], set(), set()
    self.products = {}  # Computation -> whether it has one.
    self.kernels = collections.defaultdict(lambda: {'launches': 0, 'sites': 0})

  def walk(self, name, loops):
    """Counts a computation; `loops` are (name, times) of those around it."""
    times = math.prod(n for _, n in loops)
    lines = self.computations.get(name, {})
    for place, (line, shape, operation, _) in lines.items():
      self.arrays |= {f'{kind}[{dims}]' for kind, dims in _ARRAY.findall(shape)}
      kind = operation.removesuffix('-start')
      if kind in _KINDS:
        message = self._message(lines, place, kind, loops, times)
        if message.group != 1:  # Who is alone sends nothing.
          self.messages.append(message)
      elif kernel := _kernel(operation, line):
        self.kernels[kernel]['launches'] += times
        self.kernels[kernel]['sites'] += 1
        if operation == 'custom-call':
          self.scopes.add(_scope(line))
      if operation == 'while':
        trips = _TRIPS.search(line)
        loop = _scope(line), int(trips[1] if trips else 1)
        self.scopes.add(loop[0])
        self.walk(_CALLED.search(line)[1], (*loops, loop))
      elif operation in ('call', 'async-start') and (
        called := _CALLED.search(line)
      ):
        self.walk(called[1], loops)
      elif operation == 'conditional':
        for names in _BRANCHES.findall(line):
          for branch in re.findall(r'[\w.-]+', ' '.join(names)):
            self.walk(branch, loops)

  def _message(self, lines, place, kind, loops, times) -> Message:
    line, shape, operation, operands = lines[place]
    group, out = _group(line), _arrays(shape, operation)
    dtypes = sorted({dtype for dtype, _ in out})
    if kind == 'ragged-all-to-all':
      given = lines[re.search(r'%([\w.-]+)', operands)[1]][1]
      out = min(out, _arrays(given, ''), key=_bytes)
    times *= group if kind == 'reduce-scatter' else 1
    return Message(
      kind=kind,
      calls=math.prod(n for _, n in loops),
      bytes=times * _bytes(out),
      elements=times * sum(n for _, n in out),
      dtype='+'.join(dtypes),
      group=group,
      scope=' '.join(filter(None, (*(n for n, _ in loops), _scope(line)))),
      loops=tuple(n for _, n in loops),
      hidden=self._is_hidden(lines, place),
    )

  def _is_hidden(self, lines, place) -> bool:
    """Whether a product runs between the start and the end of a message."""
    line, _, operation, _ = lines[place]
    if not operation.endswith('-start') or '"is_sync":true' in line:
      return False
    names = list(lines)
    for name in names[names.index(place) + 1 :]:
      after, _, operation, operands = lines[name]
      if place in re.findall(r'[\w.-]+', operands):
        return False
      if self._multiplies(operation, after):
        return True
    return False

  def _multiplies(self, operation, line) -> bool:
    """Whether an instruction, or what it calls, is a product of matrices."""
    if operation in ('dot', 'convolution'):
      return True
    if operation == 'custom-call':
      return bool(_PRODUCT.search(_TARGET.search(line)[1]))
    if operation not in ('fusion', 'while', 'call', 'conditional'):
      return False
    called = _CALLED.findall(line)
    for names in _BRANCHES.findall(line):
      called += re.findall(r'[\w.-]+', ' '.join(names))
    return any(self._has_product(name) for name in called)

  def _has_product(self, name) -> bool:
    if name not in self.products:
      self.products[name] = any(
        self._multiplies(operation, line)
        for line, _, operation, _ in self.computations.get(name, {}).values()
      )
    return self.products[name]


def _split(text: str) -> tuple[dict[str, dict[str, tuple]], str]:
  """Instructions of each computation by name, and the entry's name.

  An instruction is its line, the shape of its result, its operation and its
  operands.
  """
  computations, lines, entry = {}, {}, ''
  for line in text.splitlines():
    if found := _COMPUTATION.match(line):
      lines = computations.setdefault(found[1], {})
      entry = found[1] if line.startswith('ENTRY') else entry
    elif found := _INSTRUCTION.match(line):
      # Comments within tuples, as /*index=5*/, have an equals sign.
      rest = re.sub(r'/\*.*?\*/', '', found[2])
      if parts := _OPERATION.match(rest):
        lines[found[1]] = rest, *parts.groups()
  return computations, entry


def _kernel(operation: str, line: str) -> str | None:
  if operation == 'fusion':
    return 'fusion'
  if operation == 'custom-call':
    target = _TARGET.search(line)[1]
    if target.endswith('gpu.triton'):  # '.../attention_forward/pallas_call'.
      return ' '.join(['triton', *_scope(line).split('/')[-2:-1]])
    # Ours have the path of their library in their names.
    return re.sub(':.*:', ' ', target)
  return operation if operation in ('sort', 'dot', 'convolution') else None


def _scope(line: str) -> str:
  found = _NAME.search(line)
  return found[1] if found else ''


def _group(line: str) -> int:
  """Devices of a group; of a permute, those of the ring or line; 0: all."""
  if found := _AXES.search(line):
    sizes = dict(re.findall(r"'(\w+)'=(\d+)", found[1]))
    return math.prod(int(sizes[a]) for a in re.findall(r"'(\w+)'", found[2]))
  if found := _IOTA.search(line):
    return int(found[1])
  if found := _LISTED.search(line):
    return len(found[1].split(','))
  found = _PAIRS.search(line)
  return _chain(re.findall(r'(\d+),(\d+)', found[1])) if found else 0


def _chain(pairs: list[tuple[str, str]]) -> int:
  """Devices along which a permute passes something on."""
  after, seen = dict(pairs), []
  place = min({*after} - {*after.values()} or after, default=None, key=int)
  while place is not None and place not in seen:
    seen.append(place)
    place = after.get(place)
  return len(seen)


def _arrays(shape: str, operation: str) -> list[tuple[str, int]]:
  """Types and elements of a result; of a start, those behind its input."""
  found = [
    (kind, math.prod(int(n) for n in dims.split(',') if n))
    for kind, dims in _ARRAY.findall(shape)
  ]
  if operation == 'collective-permute-start':
    return found[1:2]
  if operation.endswith('-start') and operation != 'all-reduce-start':
    return found[len(found) // 2 :]
  return found


def _bytes(arrays: list[tuple[str, int]]) -> int:
  return sum(_width(kind) * elements for kind, elements in arrays)


def _width(kind: str) -> int:
  """Bytes of an element: bf16, f32, s8, pred, f8e4m3fnuz."""
  bits = re.search(r'\d+', kind)
  return max(1, int(bits[0]) // 8) if bits else 1
