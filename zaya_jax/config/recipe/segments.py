# SPDX-License-Identifier: Apache-2.0
"""A run in segments: a segment is a part of a phase with one batch size.

Within a segment nothing changes: sequence length, batch size, mixture, mesh.
Rows are numbered through the whole run, from 0; the position of a run is the
next row. A run without a recipe is one segment.
"""

import dataclasses
import fractions
from collections.abc import Callable, Sequence
from typing import Any, Literal

from zaya_jax.config import fields, training
from zaya_jax.config import recipe as recipe_lib

# Steps of a schedule whose end is not known yet: a run of --hours, as long as
# its speed is measured.
UNTIMED = 2**30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Segment:
  """A part of a run.

  Attributes:
    index: of the segments of the run, from 0.
    phase: name; '': of a run without a recipe.
    first_row: of the run.
    rows: how many.
    first_step: steps of the run before it.
    steps: how many.
    first_token: tokens of the run before it.
    seq_len: tokens of a row.
    batch_size: rows of a step.
    weights: of each source of the recipe, in its order, their share of the
      rows, exact; they sum to 1. (): as --data.dir says.
    rate: the learning rate of the phase; None: as --optim.* say.
    phase_token: tokens of the phase before the segment.
    keep: of the state before it.
    closes: whether the phase ends with it.
    flags: (name, value) of the phase.
  """

  index: int = 0
  phase: str = ''
  first_row: int = 0
  rows: int
  first_step: int = 0
  steps: int
  first_token: int = 0
  seq_len: int
  batch_size: int
  weights: tuple[fractions.Fraction, ...] = ()
  rate: training.Rate | None = None
  phase_token: int = 0
  keep: Literal['all', 'params'] = 'all'
  closes: bool = True
  flags: tuple[tuple[str, Any], ...] = ()

  @property
  def stop_row(self) -> int:
    """The first row after it."""
    return self.first_row + self.rows

  @property
  def stop_step(self) -> int:
    """Steps of the run when it is done."""
    return self.first_step + self.steps

  @property
  def stop_token(self) -> int:
    """Tokens of the run when it is done."""
    return self.first_token + self.rows * self.seq_len

  def learning_rate(self, row: int) -> float:
    """The rate of the step that begins at `row`; of a recipe alone."""
    assert self.rate
    return self.rate.at(
      self.phase_token + (row - self.first_row) * self.seq_len
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Course:
  """A recipe as it was read, and where a run is in it.

  Attributes:
    recipe: of the run.
    segments: all of them.
    index: of the segment whose settings hold; None: those of the flags.
    whole: the settings of the run, some of which a segment changes.
  """

  recipe: recipe_lib.Recipe
  segments: tuple[Segment, ...]
  index: int | None = None
  whole: Any = None


def segments(config: Any) -> tuple[Segment, ...]:
  """All segments of a run; one, if there is no recipe.

  Args:
    config: `Config`, of the run or of one of its segments.

  Raises:
    UsageError: if the recipe breaks a rule, naming the phase and the key.
  """
  found = course(config)
  if found:
    return found.segments
  data = config.data
  return (
    Segment(
      rows=config.num_steps * data.batch_size,
      steps=config.num_steps,
      seq_len=data.seq_len,
      batch_size=data.batch_size,
    ),
  )


def course(config: Any) -> Course | None:
  """The recipe of a run and its segments; None: it has none.

  Reads the file, unless `config` comes from `segment_config`: what is edited
  while a run goes on counts when it is started again.
  """
  if config.course or not config.recipe:
    return config.course
  recipe = recipe_lib.load(config.recipe)
  found: list[Segment] = []
  for phase in recipe.phases:
    found += _of_phase(config, recipe, phase, found)
  made = Course(recipe=recipe, segments=tuple(found), whole=config)
  for segment in found:
    whole = dataclasses.replace(config, course=made)
    _naming_phase(recipe, segment.phase, segment_config, whole, segment)
  return made


def segment_config(config: Any, segment: Segment) -> Any:
  """The settings that hold in one of `segments(config)`.

  Returns:
    A `Config` with `course`; `num_steps` is of the whole run, `data.dir` are
    the sources that the segment reads, with their weights.
  """
  found = course(config)
  if not found:
    return config
  flags = dict(segment.flags)
  flags['data.batch_size'] = segment.batch_size
  pairs = zip(found.recipe.sources, segment.weights, strict=True)
  flags['data.dir'] = tuple(
    f'{s.folder(config.run_dir)}@{float(w)!r}' for s, w in pairs if w
  )
  flags['data.input'] = ''
  changed = with_flags(found.whole, flags)
  return dataclasses.replace(
    changed,
    num_steps=found.segments[-1].stop_step,
    course=dataclasses.replace(found, index=segment.index),
  )


def current(config: Any) -> Segment:
  """The segment whose settings these are; the only one, without a recipe."""
  index = config.course.index if config.course else 0
  assert index is not None, 'a config of a whole recipe has no segment'
  return segments(config)[index]


def is_last(config: Any) -> bool:
  """Whether the run ends with the segment whose settings these are."""
  if config.optim.schedule_steps == UNTIMED:
    return False
  return current(config).index == len(segments(config)) - 1


def tokens_left(config: Any, step: int) -> int:
  """Tokens of the run after `step`, a step of the segment of `config`."""
  here = current(config)
  size = here.batch_size * here.seq_len
  done = here.first_token + (step - here.first_step) * size
  return segments(config)[-1].stop_token - done


def before(config: Any, row: int) -> Any:
  """The settings that held for the row before `row`, which is next."""
  if not config.course or not row:
    return config
  return segment_config(config, at(segments(config), row - 1))


def at(found: Sequence[Segment], row: int) -> Segment:
  """The segment to which `row` belongs; the last one, after all rows."""
  return next((s for s in found if row < s.stop_row), found[-1])


def counted_from(found: Course, row: int, step: int) -> Course:
  """The course of a run that has done `step` steps when `row` is next.

  They are fewer than planned where batches were left out.

  Raises:
    ValueError: if no step begins at the row.
  """
  here = at(found.segments, row)
  steps, rest = divmod(row - here.first_row, here.batch_size)
  if rest:
    raise ValueError(f'row {row} lies within a batch of {here.batch_size}.')
  late = here.first_step + steps - step
  moved = [
    dataclasses.replace(s, first_step=s.first_step - late)
    for s in found.segments
  ]
  return dataclasses.replace(found, segments=tuple(moved))


def with_flags(config: Any, flags: dict[str, Any]) -> Any:
  """`config` with other values of flags, by name, as 'data.seq_len'."""
  sections: dict[str, dict[str, Any]] = {}
  for name, value in flags.items():
    section, _, field = name.partition('.')
    sections.setdefault(section, {})[field] = value
  for section, values in sections.items():
    there = getattr(config, section)
    known = {field.name for field in dataclasses.fields(there)}
    if unknown := [name for name in values if name not in known]:
      raise fields.UsageError(f'--{section}.{unknown[0]} is not a flag.')
    sections[section] = dataclasses.replace(there, **values)
  return dataclasses.replace(config, **sections)


def in_each(config: Any, check: Callable[[Any], Any]) -> None:
  """Calls `check` with the settings of each segment; errors name the phase."""
  found = course(config)
  if not found:
    check(config)
    return
  for segment in found.segments:
    there = segment_config(dataclasses.replace(config, course=found), segment)
    _naming_phase(found.recipe, segment.phase, check, there)


def _naming_phase(recipe, phase, make, *args):
  """What `make` gives of `args`; its UsageErrors name file and phase."""
  try:
    return make(*args)
  except fields.UsageError as problem:
    raise fields.UsageError(
      f'--recipe={recipe.path}: phase "{phase}": {problem}'
    ) from problem


def _of_phase(config, recipe, phase, before) -> list[Segment]:
  """The segments of one phase; `before`: those of the phases before it."""
  flags = dict(phase.flags)
  if phase.batch:
    flags['data.batch_size'] = phase.batch[0][1]
  data = _naming_phase(recipe, phase.name, with_flags, config, flags).data
  ramp = phase.batch or ((0, data.batch_size),)
  ends = [*(place for place, _ in ramp[1:]), phase.tokens]
  first = ramp[0][1] * data.seq_len
  rate = _naming_phase(recipe, phase.name, phase.rate.counted, first)
  share = sum(phase.mixture.values())
  zero = fractions.Fraction(0)
  weights = [phase.mixture.get(s.name, zero) / share for s in recipe.sources]
  found: list[Segment] = []
  for (_, batch_size), end in zip(ramp, ends, strict=True):
    last = (*before, *found)[-1:]
    done = sum(s.rows * s.seq_len for s in found)
    # Whole steps; one that goes over the end may leave the next part nothing.
    steps = -(-(end - done) // (batch_size * data.seq_len))
    if steps <= 0:
      continue
    found.append(
      Segment(
        index=len(before) + len(found),
        phase=phase.name,
        first_row=last[0].stop_row if last else 0,
        rows=steps * batch_size,
        first_step=last[0].stop_step if last else 0,
        steps=steps,
        first_token=last[0].stop_token if last else 0,
        seq_len=data.seq_len,
        batch_size=batch_size,
        weights=tuple(weights),
        rate=rate,
        phase_token=done,
        keep='all' if found else phase.keep,
        closes=False,
        flags=tuple(flags.items()),
      )
    )
  found[-1] = dataclasses.replace(found[-1], closes=True)
  return found
