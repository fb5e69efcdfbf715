# SPDX-License-Identifier: Apache-2.0
"""A recipe in miniature: its phases, mixtures and rates; few and short rows.

Every segment has `STEPS` steps. Sequence lengths and batch sizes keep their
proportions as far as they are small; what a phase changes beside them stays.
"""

import dataclasses
import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any

from zaya_jax.aegis.drills import trial
from zaya_jax.config import training
from zaya_jax.config.recipe import segments

STEPS, SAVE_EVERY = 6, 3
_LENGTHS = 32, 256  # The shortest row, and the longest.
_ROWS = 4, 16  # Of a step: divided by four devices.
_KEPT = 'model.rope_theta', 'optim.balance_lr'
_LINES = 3000  # Of the text of a source.
FLAGS = [
  *(flag for flag in trial.TINY if not flag.startswith('--data.')),
  *f"""
--data.seq_len={_LENGTHS[0]}
--data.record_tokens={_LENGTHS[1]}
--data.val_fraction=0
--checkpoint.every={SAVE_EVERY}
--checkpoint.keep=99
--checkpoint.host_memory_gb=1
--log.every=1
--log.sample_every=0
--nolog.tensorboard
--nolog.report
--eval.every=0
--generate.max_tokens=1
--guard.spike_limit=0
""".split(),
]


def write(course: segments.Course, folder: pathlib.Path, phases: int) -> str:
  """Writes the first phases of a recipe in miniature, and texts for it.

  Args:
    course: of the recipe.
    folder: for both.
    phases: how many.

  Returns:
    The path of the recipe.
  """
  recipe = course.recipe
  lines = ['[sources]']
  for number, source in enumerate(recipe.sources):
    text = folder / f'source_{number}.txt'
    if not text.exists():
      text.write_text(
        ''.join(
          f'{source.name}: {n} and {number} are {n + number}.\n'
          for n in range(_LINES)
        )
      )
    shards = json.dumps(str(folder / f'shards_{number}'))
    lines.append(
      f'{json.dumps(source.name)} = {{ input = {json.dumps(str(text))}, '
      f'dir = {shards} }}'
    )
  last = recipe.phases[-1]
  for phase in recipe.phases[:phases]:
    own = [s for s in course.segments if s.phase == phase.name]
    lines += _phase(course, phase, own, far=phase is last)
  path = folder / f'recipe_{phases}.toml'
  path.write_text('\n'.join(lines) + '\n')
  return str(path)


def _phase(course, phase, own: Sequence[segments.Segment], far: bool):
  """The lines of one phase; `far`: its rows are divided among two devices."""
  seq_len = _scaled(own, course, 'seq_len', _LENGTHS)[0]
  sizes = _scaled(own, course, 'batch_size', _ROWS)
  ends, tokens = [], 0
  for size in sizes:
    ends.append(tokens)
    tokens += STEPS * size * seq_len
  ramp = [f'{at}:{size}' for at, size in zip(ends, sizes, strict=True)]
  whole = math.lcm(*(share.denominator for share in phase.mixture.values()))
  mixture = {name: int(w * whole) for name, w in phase.mixture.items()}
  context = 2 if far or _context(own) > 1 else 1
  flags = {name: value for name, value in phase.flags.items() if name in _KEPT}
  flags |= {'data.seq_len': seq_len, 'mesh.context': context}
  return [
    '[[phase]]',
    f'name = {json.dumps(phase.name)}',
    f'tokens = {tokens}',
    f'mixture = {_table(mixture)}',
    f'batch = {json.dumps(ramp)}',
    f'lr = {_table(_rate(own[0].rate, tokens))}',
    f'keep = "{phase.keep}"',
    f'flags = {_table(flags)}',
  ]


def _rate(rate: training.Rate, tokens: int) -> dict[str, Any]:
  """The same rates over fewer tokens."""
  found: dict[str, Any] = {
    'from': rate.start,
    'shape': rate.shape,
    'warmup': rate.warmup * tokens // rate.tokens,
  }
  return found if rate.shape == 'constant' else {**found, 'to': rate.end}


def _scaled(own, course, name, bounds) -> list[int]:
  """Powers of two that keep the proportions of a size, within bounds."""
  least = min(getattr(s, name) for s in course.segments)
  low, high = bounds
  times = [getattr(s, name) / least for s in own]
  return [min(high, low << max(0, round(math.log2(x)))) for x in times]


def _context(own) -> int:
  return max(dict(s.flags).get('mesh.context', 1) for s in own)


def _table(values: dict[str, Any]) -> str:
  inside = (f'{json.dumps(k)} = {json.dumps(v)}' for k, v in values.items())
  return f'{{ {", ".join(inside)} }}'


@dataclasses.dataclass(frozen=True)
class Plan:
  """Where a miniature has its boundaries.

  Attributes:
    segments: of the miniature.
    phases: names, in their order.
  """

  segments: tuple[segments.Segment, ...]
  phases: tuple[str, ...]

  @property
  def ends(self) -> list[int]:
    """The last step of each phase."""
    return [s.stop_step for s in self.segments if s.closes]

  @property
  def least(self) -> int:
    """Processes that the first phase needs: its rows may be divided."""
    return _context([s for s in self.segments if s.phase == self.phases[0]])

  @property
  def last(self) -> int:
    """The last step of all."""
    return self.segments[-1].stop_step
