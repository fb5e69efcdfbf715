# SPDX-License-Identifier: Apache-2.0
"""Which engine of an operation runs: the fastest that takes the inputs.

An operation lists its engines, fastest first. Where none is named, the first
one runs that is meant for the platform and takes the inputs; why others were
passed over is kept for who asks (`choices`). A named engine runs or raises:
nothing falls back in silence. Where engines were timed on this kind of machine
(`measured`), their times on inputs like these come before that order.
"""

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax

PLATFORMS = ('cpu', 'cuda', 'rocm')
GPUS = ('cuda', 'rocm')

_named: dict[str, str] = {}
_target: list[str] = []
_choices: dict[tuple[str, str], 'Choice'] = {}
_seen: dict[str, str] = {}
_rows: list['Row'] = []
_LIKE = 4  # By which rows, the first dimension, may differ from measured ones.


class UnsupportedError(ValueError):
  """A named engine cannot run here, or not on these inputs."""

  exit_code = 2


@dataclasses.dataclass(frozen=True)
class Engine:
  """One way to compute an operation.

  Attributes:
    name: 'hopper', 'cudnn', 'triton', 'hip' or 'xla'.
    run: the function, of the arguments of the operation.
    unsupported: of the same arguments: why it cannot run on them, a clause
      without a full stop, or None.
    platforms: where it is taken without being named.
    slower: of the same arguments: why a later engine is faster, or None; asked
      where none is named.
  """

  name: str
  run: Callable[..., Any]
  unsupported: Callable[..., str | None] = lambda *_, **__: None
  platforms: tuple[str, ...] = PLATFORMS
  slower: Callable[..., str | None] = lambda *_, **__: None


def wide(array: jax.Array | jax.ShapeDtypeStruct, *_, **__) -> str | None:
  """For `Engine.slower`, of what was tuned for 16-bit inputs alone."""
  return (
    None
    if array.dtype.itemsize <= 2
    else f'tuned for 16 bits, not {array.dtype}'
  )


@dataclasses.dataclass(frozen=True)
class Choice:
  """What was chosen once.

  Attributes:
    op: the operation.
    engine: the name of its engine.
    passed_over: the names of faster engines, each with the reason.
  """

  op: str
  engine: str
  passed_over: tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True)
class Row:
  """An engine as it was timed.

  Attributes:
    op: the operation.
    engine: its name.
    shapes: of the inputs, as `seen` gives them.
    seconds: of a call, with gradients where there are some.
  """

  op: str
  engine: str
  shapes: str
  seconds: float


@contextlib.contextmanager
def measured(rows: Iterable[Row]) -> Iterator[None]:
  """Inside, engines that were timed on such inputs are taken by their time."""
  before = list(_rows)
  _rows[:] = rows
  try:
    yield
  finally:
    _rows[:] = before


def rows() -> list[Row]:
  """What is known of engines' times now."""
  return list(_rows)


def seen(op: str) -> str:
  """Types and shapes of the inputs of which an engine was chosen last."""
  return _seen.get(op, '')


def platform() -> str:
  """One of `PLATFORMS`: what is compiled for, the default device if not told.

  JAX calls both kinds of GPU 'gpu'.
  """
  if _target:
    return _target[-1]
  device = jax.devices()[0]
  if device.platform == 'cpu':
    return 'cpu'
  return 'rocm' if 'rocm' in device.client.platform_version.lower() else 'cuda'


@contextlib.contextmanager
def compile_for(name: str) -> Iterator[None]:
  """Inside, `platform` is `name`: for programs that run elsewhere."""
  _target.append(name)
  try:
    yield
  finally:
    _target.pop()


@contextlib.contextmanager
def use(**engines: str) -> Iterator[None]:
  """Inside, operations run on these engines: newton_schulz='xla'.

  What was traced before is not traced anew.
  """
  before = dict(_named)
  _named.update(engines)
  try:
    yield
  finally:
    _named.clear()
    _named.update(before)


def select(
  op: str, engines: Sequence[Engine], *args: Any, **kwargs: Any
) -> Callable[..., Any]:
  """The function of the engine for these inputs.

  Args:
    op: the operation.
    engines: its engines, fastest first; the last takes whatever is allowed.
    *args: inputs, also abstract ones.
    **kwargs: inputs, also abstract ones.

  Raises:
    UnsupportedError: if the named engine does not exist or cannot run.
  """
  named, here = _named.get(op, 'auto'), platform()
  if named != 'auto':
    engines = [e for e in engines if e.name == named] or _no_engine(
      op, named, engines
    )
  shapes = _seen[op] = _shapes(args)
  known = _times(op, shapes) if named == 'auto' else {}
  engines = sorted(engines, key=lambda e: known.get(e.name, math.inf))
  passed_over = []
  for engine in engines:
    reason = None
    asks = named == 'auto' and engine.name not in known
    if asks and here not in engine.platforms:
      reason = f'on {here} only when named'  # Whether or not it could run.
    reason = reason or engine.unsupported(*args, **kwargs)
    if reason is None and asks:
      reason = engine.slower(*args, **kwargs)
    if reason is None:
      passed_over += _slower(engine, known)
      choice = Choice(op, engine.name, tuple(passed_over))
      _choices.setdefault((op, engine.name), choice)
      return engine.run
    passed_over.append((engine.name, reason))
  raise UnsupportedError(
    f'--ops.{op}={named} cannot run here: {reason}; name another engine, or '
    'auto.'
  )


def _shapes(args: Sequence[Any]) -> str:
  """Types and shapes: 'bfloat16[16384,2048] int32[16384]'."""
  return ' '.join(
    f'{x.dtype}[{",".join(map(str, x.shape))}]'
    for x in jax.tree.leaves(args)
    if hasattr(x, 'shape')
  )


def _times(op: str, shapes: str) -> dict[str, float]:
  """Seconds of engines that were timed on the inputs that are most like."""
  far = {row.shapes: _far(row.shapes, shapes) for row in _rows if row.op == op}
  near = min(far, key=lambda key: far[key], default='')
  if not near or far[near] == math.inf:
    return {}
  return {
    row.engine: row.seconds
    for row in _rows
    if (row.op, row.shapes) == (op, near)
  }


def _far(one: str, two: str) -> float:
  """Doublings between the rows of inputs; inf: they differ in more."""
  pattern = re.compile(r'\[(\d+)')
  if pattern.sub('[', one) != pattern.sub('[', two):
    return math.inf
  pairs = zip(pattern.findall(one), pattern.findall(two), strict=True)
  far = [abs(math.log2(max(1, int(a)) / max(1, int(b)))) for a, b in pairs]
  return sum(far) if max(far, default=0.0) <= math.log2(_LIKE) else math.inf


def _slower(engine, known) -> list[tuple[str, str]]:
  """What was timed beside the engine that is taken."""
  if engine.name not in known:
    return []
  mine = known[engine.name]
  return [
    (name, f'measured {seconds / mine:.2f} times as long')
    for name, seconds in known.items()
    if seconds > mine
  ]


def choices() -> list[Choice]:
  """Every engine that was chosen in this process, by operation."""
  return [_choices[key] for key in sorted(_choices)]


def remember(chosen: Iterable[Choice]) -> None:
  """These were chosen when a program was traced that this process runs."""
  for choice in chosen:
    _choices.setdefault((choice.op, choice.engine), choice)


def named() -> dict[str, str]:
  """The engines that are named now, by operation."""
  return dict(_named)


def notes() -> list[str]:
  """Which engine each operation runs on, and why no faster one: lines."""
  names = ', '.join(f'{choice.op} {choice.engine}' for choice in choices())
  lines = [f'engines: {names}']
  if platform() == 'cpu':
    return lines  # Where XLA is the fastest.
  for choice in choices():
    for name, reason in choice.passed_over:
      lines.append(f'{choice.op}: {choice.engine}, not {name}: {reason}')
  return lines


def _no_engine(op, named, engines):
  names = ', '.join(('auto', *(engine.name for engine in engines)))
  raise UnsupportedError(f'--ops.{op}={named} is no engine of it: {names}.')
