# SPDX-License-Identifier: Apache-2.0
"""What a run says of its recipe: all phases, and each as it begins and ends."""

from collections.abc import Iterator

from zaya_jax import config as config_lib
from zaya_jax.config.recipe import segments
from zaya_jax.metrics import text


def overview(config: config_lib.Config) -> Iterator[str]:
  """Yields the recipe, then a line for each phase; nothing without one."""
  course = segments.course(config)
  if not course:
    return
  phases, last = course.recipe.phases, course.segments[-1]
  yield (
    f'recipe  {course.recipe.path}: {_many(len(phases), "phase")}, '
    f'{text.short(last.stop_token)} tokens in {_many(last.stop_step, "step")}'
  )
  wide = max(len(phase.name) for phase in phases)
  for number, phase in enumerate(phases, 1):
    own = [s for s in course.segments if s.phase == phase.name]
    sizes = ' > '.join(f'{s.batch_size:,}' for s in own)
    rounded = sum(s.rows * s.seq_len for s in own) - phase.tokens
    more = f' (and {rounded:,}, for whole steps)' if rounded else ''
    yield (
      f'  {number} {phase.name:<{wide}}  {text.short(phase.tokens)} tokens'
      f'{more}, {sizes} rows of {own[0].seq_len:,}, lr {_rates(own[0].rate)}, '
      f'{_mixture(course, own[0])}'
    )


def entered(config: config_lib.Config, row: int) -> str:
  """What begins, or goes on, at a row: the settings of a segment."""
  course, here = config.course, segments.current(config)
  names = [phase.name for phase in course.recipe.phases]
  token = here.first_token + (row - here.first_row) * here.seq_len
  return (
    f'phase {names.index(here.phase) + 1} of {len(names)}: {here.phase}, from '
    f'token {text.short(token)}: {here.batch_size:,} rows of {here.seq_len:,}, '
    f'lr {here.learning_rate(row):.2e}, {_mixture(course, here)}; '
    f'{_next(course, here)}'
  )


def left(config: config_lib.Config, loss: float) -> str:
  """That a segment is done, and what its successor takes over."""
  course, here = config.course, segments.current(config)
  after = course.segments[here.index + 1]
  if here.closes:
    what = f'phase {here.phase} is done'
  else:
    what = f'{here.phase}: a batch of {here.batch_size:,} rows is done with'
  kept = {
    'all': 'parameters, balance and optimizer are kept',
    'params': 'parameters and balance are kept, the optimizer begins anew',
  }
  return (
    f'{what} at step {here.stop_step:,}, token {text.short(here.stop_token)}, '
    f'loss {loss:.4f}; {kept[after.keep]}'
  )


def _next(course, here) -> str:
  """What comes after a segment, and when."""
  when = f'step {here.stop_step:,} (token {text.short(here.stop_token)})'
  if here.index + 1 == len(course.segments):
    return f'the run ends at {when}'
  after = course.segments[here.index + 1]
  if here.closes:
    return f'{after.phase} follows at {when}'
  return f'{after.batch_size:,} rows from {when} on'


def _rates(rate) -> str:
  ends = [f'{rate.start:.3g}']
  if rate.warmup:
    ends.insert(0, f'{rate.before:.3g}')
  if rate.shape != 'constant':
    ends.append(f'{rate.end:.3g}')
  return f'{" > ".join(ends)} {rate.shape}'


def _mixture(course, segment) -> str:
  """Sources with their shares; a single one is not worth a number."""
  names = [source.name for source in course.recipe.sources]
  shares = [
    (name, share)
    for name, share in zip(names, segment.weights, strict=True)
    if share
  ]
  if len(shares) == 1:
    return shares[0][0]
  return ', '.join(f'{name} {float(100 * w):.3g}%' for name, w in shares)


def _many(count: int, what: str) -> str:
  return f'{count:,} {what}{"s" * (count != 1)}'
