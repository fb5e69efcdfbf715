# SPDX-License-Identifier: Apache-2.0
"""Every engine of every operation, on the shapes of ZAYA1-8B.

What --mode=bench --bench.op=experts shows beside peers, this keeps for plans
and for the choice of an engine: of a point `size` are the least bytes, `work`
the least FLOPs, `about` the types and shapes of the inputs.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator

import jax

from ops import case as case_lib
from ops import dispatch, registry
from zaya_jax import config as config_lib
from zaya_jax.bench import runner
from zaya_jax.bench.sweep import clock, record
from zaya_jax.bench.sweep import frame as frame_lib

UNIT = 'TFLOP/s'
WORDS = '{case}'
# Without gradients.
_ALONE = ('newton_schulz', 'muon_momentum')
_One = tuple[str, registry.Operation, case_lib.Case, str, str]


def cases(config: config_lib.Config) -> tuple[str, ...]:
  """Operation, engine, 'forward' or 'both', and the name of the shapes."""
  del config
  return tuple(name for name, *_ in _all())


def run(frame: frame_lib.Frame, config: config_lib.Config) -> None:
  """Times what can run, forward and with gradients."""
  found = [one for one in _all() if frame.wants(one[0])]
  frame.expect(len(found))
  for name, operation, case, engine, which in found:
    known = len(frame.points)
    once = functools.partial(
      _measure, operation, case, engine, which, config.bench
    )
    index = which == 'both'
    try:
      frame.single(name, 1, round(case.bytes[index]), case.flops[index], once)
    except runner.SkippedError as error:
      frame.notes.append(f'{name}: {error}')
    for n, point in enumerate(frame.points[known:], known):
      about = dispatch.seen(operation.name)
      frame.points[n] = dataclasses.replace(point, about=about)


def rows(points: Iterable[record.Point]) -> list[dispatch.Row]:
  """What `ops.dispatch` asks of a section: gradients, where there are some."""
  found = []
  for point in points:
    op, engine, which, *_ = point.case.split()
    # What was published names its source there.
    has_shapes = '[' in point.about
    if has_shapes and which == ('forward' if op in _ALONE else 'both'):
      found.append(dispatch.Row(op, engine, point.about, point.seconds))
  return found


def _all() -> Iterator[_One]:
  """All there is to time here."""
  cpu = jax.default_backend() == 'cpu'
  for operation in map(registry.operation, registry.FUNCTIONS):
    known = [case for case in operation.cases if case.zaya != cpu]
    # A CPU would need minutes for a shape of ZAYA1-8B, and emulates what is not
    # XLA's: one case says that it works.
    for case in known[:1] if cpu else known:
      for engine in operation.engines:
        if cpu and engine.name != 'xla':
          continue
        for which in ('forward', 'both') if case.gradients else ('forward',):
          name = f'{operation.name} {engine.name} {which} {case.name}'
          yield name, operation, case, engine.name, which


def _measure(operation, case, engine, which, bench, size, expected_s):
  del size, expected_s
  repeats = max(3, bench.repeats)  # Fewer have no quartiles.
  (low, seconds, high), _ = runner.time_one(
    operation, case, engine, which, bench.dtype, repeats
  )
  return clock.Timed(
    seconds=seconds, low=low, high=high, samples=repeats, calls=1
  )
