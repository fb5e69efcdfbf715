# SPDX-License-Identifier: Apache-2.0
"""The past of a recipe: what a run has trained by does not change any more.

A checkpoint remembers the segments. What an edited recipe says of rows that
were given out must be what was done with them; of later rows it may say
anything. So it is with the first recipe of a run that was plain before.
"""

import dataclasses
import itertools
from fractions import Fraction
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.config.recipe import phase as phase_lib
from zaya_jax.config.recipe import segments
from zaya_jax.data import plain, position

# Flags of a phase that decide what was trained; others say how.
_FLAGS = ('model.rope_theta', 'optim.balance_lr')


def record(course: segments.Course) -> dict[str, Any]:
  """What a checkpoint remembers of a recipe, as JSON has it."""
  names = [source.name for source in course.recipe.sources]
  return {
    'path': course.recipe.path,
    'sources': names,
    'folders': [
      source.folder(course.whole.run_dir) for source in course.recipe.sources
    ],
    'segments': [_facts(names, s) for s in course.segments],
  }


def folders(known: dict[str, Any]) -> tuple[str, ...]:
  """The sources of a `record` as --data.dir, by their tokens in the whole run.

  So training weighs held-out losses (`sources.of_the_whole`).
  """
  found: dict[str, float] = {}
  for segment in known['segments']:
    tokens = (segment['stop_row'] - segment['first_row']) * segment['length']
    for name, share in segment['mixture'].items():
      found[name] = found.get(name, 0) + tokens * float(Fraction(share))
  pairs = zip(known['sources'], known['folders'], strict=True)
  return tuple(
    f'{folder}@{found[name]!r}' for name, folder in pairs if name in found
  )


def check(
  config: config_lib.Config,
  course: segments.Course | None,
  about: dict[str, Any],
  step: int,
) -> None:
  """Refuses to go on by a recipe that says something else of the past.

  Args:
    config: of the run.
    course: of the recipe now; None: the run has none.
    about: the meta of the checkpoint to go on from.
    step: of the checkpoint.

  Raises:
    UsageError: naming the first phase that differs.
  """
  before = about.get('recipe')
  if not course:
    if before:
      raise config_lib.UsageError(
        f'--recipe={config.recipe}: the run in --run_dir={config.run_dir} was '
        f'trained by {before["path"]}; go on with a recipe that begins so, or '
        'take its parameters into another --run_dir with '
        f'--restore={config.run_dir}.'
      )
    return
  then = 'put it back, and write what is to change as a phase behind it'
  if not before:
    if position.META not in about:  # Too old to go on, which that says.
      return
    before = _of_plain(course, about, step)
    then = (
      'say what was run, as --mode=ledger --output=FILE.toml '
      f'--run_dir={config.run_dir} writes it, and what is to change as a phase '
      'behind it'
    )
  _compare(course, before, about, then)


def _compare(course, before, about, then) -> None:
  """Refuses a recipe that is not as the `record` before; `then`: what to do."""
  now, row = record(course), about['data_index']
  known = len(before['sources'])
  if now['sources'][:known] != before['sources']:
    raise phase_lib.error(
      course.recipe.path,
      '',
      '[sources]',
      f' were {", ".join(before["sources"])}, in this order, when the run '
      'began; put them back, and new ones behind them.',
    )
  begun = [s for s in before['segments'] if s['first_row'] < row]
  for i, old in enumerate(begun):
    new = now['segments'][i] if i < len(now['segments']) else {}
    if key := _difference(old, new, row):
      name, *below = key.split('.', 1)
      was, is_ = old[name], new.get(name, 'missing')
      if below:
        was, is_ = (x.get(below[0], 'not given') for x in (was, is_))
      raise phase_lib.error(
        course.recipe.path,
        old['phase'],
        key,
        f' was {was} and is {is_} now, and the '
        f'run has trained by it up to token {about["tokens"]:,}; {then}.',
      )


def _of_plain(course, about, step) -> dict[str, Any]:
  """The `record` of a plain run, in the names of the recipe that follows it."""
  count = plain.check_sources(course, about)
  names = [source.name for source in course.recipe.sources[:count]]
  found = []
  for old, new in itertools.zip_longest(
    plain.phases(about, step), course.segments
  ):
    if not old:
      break
    if new:
      flags = ((k, plain.flag(about, k)) for k, _ in new.flags if k in _FLAGS)
      old = dataclasses.replace(old, phase=new.phase, flags=tuple(flags))
    found.append(_facts(names, old))
  return {'sources': names, 'segments': found}


def _facts(names, segment) -> dict[str, Any]:
  """What decides about the rows of a segment, under the keys of a recipe."""
  rate = segment.rate
  rates = {'from': rate.start, 'shape': rate.shape, 'warmup': rate.warmup}
  if rate.shape != 'constant':  # Which may last longer.
    rates |= {'to': rate.end, 'tokens': rate.tokens}
  if rate.warmup:
    rates['before'] = rate.before
  if rate.warmup_steps:  # The key that is written, so the first that is named.
    rates = {'warmup_steps': rate.warmup_steps, **rates}
  shares = zip(names, segment.weights, strict=True)
  return {
    'phase': segment.phase,
    'first_row': segment.first_row,
    'tokens': segment.stop_token,
    'stop_row': segment.stop_row,
    'batch': segment.batch_size,
    'length': segment.seq_len,
    'mixture': {name: str(share) for name, share in shares if share},
    'lr': rates,
    'keep': segment.keep,
    'flags': {k: v for k, v in segment.flags if k in _FLAGS},
  }


def _difference(old, new, row) -> str:
  """The first key in which the past differs, or ''."""
  free = {'tokens', 'stop_row'}
  for key in old:
    if key not in free and old[key] != (now := new.get(key)):
      if isinstance(old[key], dict) and isinstance(now, dict):
        names = (name for name in {**old[key], **now})
        return (
          f'{key}.{next(n for n in names if old[key].get(n) != now.get(n))}'
        )
      return key
  # The end of what is over; of what goes on, it must not be over already.
  over = old['stop_row'] < row
  same = old['stop_row'] == new['stop_row']
  return '' if same or (not over and new['stop_row'] >= row) else 'tokens'
