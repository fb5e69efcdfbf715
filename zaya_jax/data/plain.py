# SPDX-License-Identifier: Apache-2.0
"""A plain run as the first phases of a recipe: what it was trained by so far.

So a run that was begun without a recipe may go on with one. Its checkpoint
holds its flags, and the row and the tokens that were given out.
"""

import dataclasses
import decimal
import json
import os
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from pipelines.shards import manifest, mixture
from zaya_jax import config as config_lib
from zaya_jax.checkpoint import meta
from zaya_jax.config import training
from zaya_jax.config.recipe import phase as phase_lib
from zaya_jax.config.recipe import segments
from zaya_jax.data import past, position

_RATE = (
  'lr', 'lr_final', 'schedule', 'schedule_steps', 'warmup_steps', 'decay_steps',
)  # fmt: skip
_BARE = re.compile(r'[A-Za-z0-9_-]+')  # A key that TOML needs no quotes for.


def phases(about: dict[str, Any], step: int) -> list[segments.Segment]:
  """What a plain run has begun of its schedule, a phase for each part of it.

  Batches that were left out count for the first one.

  Args:
    about: the meta of a checkpoint.
    step: of the checkpoint.

  Raises:
    UsageError: if no phase reads as the run did.
  """
  data, row = meta.data_config(about), about['data_index']
  size = data.batch_size * data.seq_len
  if step * size != about['tokens'] or row % data.batch_size:
    raise config_lib.UsageError(
      f'--data.batch_size={data.batch_size} was another one before: '
      f'{step:,} steps were given {about["tokens"]:,} tokens, and a phase that '
      'says when it changed would have had other learning rates; take the '
      'parameters into another --run_dir with --restore.'
    )
  left_out = row * data.seq_len - about['tokens']
  weights = past.shares([part.weight for part in _parts(about, '')])
  found: list[segments.Segment] = []
  rates, steps = _rates(about, size)
  for rate in rates:
    first = found[-1].stop_row if found else 0
    if found and first >= row:
      break
    rows = (rate.tokens + (0 if found else left_out)) // data.seq_len
    if rate is rates[-1]:  # It stays as long as the run goes on.
      rows = max(first + rows, row, steps * data.batch_size) - first
    found.append(
      segments.Segment(
        phase=f'plain{len(found) + 1 if found else ""}',
        first_row=first,
        rows=rows,
        first_token=first * data.seq_len,
        steps=rows // data.batch_size,
        seq_len=data.seq_len,
        batch_size=data.batch_size,
        weights=weights,
        rate=dataclasses.replace(rate, tokens=rows * data.seq_len),
      )
    )
  return found


def check_sources(course: segments.Course, about: dict[str, Any]) -> int:
  """Whether the first sources of a recipe are what a plain run has read.

  Returns:
    How many they are.

  Raises:
    UsageError: naming the source that is another one.
  """
  contents = about[position.META]['sources']
  known = _parts(about, course.whole.run_dir)
  given = course.recipe.sources
  for i, (part, content) in enumerate(zip(known, contents, strict=True)):
    there = 'missing'
    if i < len(given):
      folder = given[i].folder(course.whole.run_dir)
      there = f'{given[i].name} in {folder}'
      if manifest.exists(folder):
        if position.contents([manifest.read(folder)]) == [content]:
          continue
    raise phase_lib.error(
      course.recipe.path,
      '',
      '[sources]',
      f' has as number {i + 1} what the run has read from {part.directory}, '
      f'and that is {there} now; name first what was read, in the order of '
      '--data.dir.',
    )
  return len(known)


def flag(about: dict[str, Any], name: str) -> Any:
  """The value that a flag of a section had, as 'model.rope_theta'."""
  section, _, field = name.partition('.')
  return about['config'][section].get(field)


def text(run_dir: str, about: dict[str, Any], step: int) -> str:
  """The recipe of what a plain run was trained by, in TOML.

  Raises:
    UsageError: as `phases`.
  """
  found = _parts(about, run_dir)
  names = [os.path.basename(os.path.abspath(p.directory)) for p in found]
  if len(set(names)) < len(names):
    names = [part.directory for part in found]
  keys = list(map(_key, names))
  shares = zip(keys, (_number(part.weight) for part in found), strict=True)
  mixed = ', '.join(f'{key} = {share}' for key, share in shares)
  lines = [
    f'# What {run_dir} was trained by, up to step {step:,}. '
    'What comes next: phases behind these.',
    '[sources]',
  ]
  for key, part in zip(keys, found, strict=True):
    lines.append(f'{key} = {json.dumps(part.directory, ensure_ascii=False)}')
  for phase in phases(about, step):
    lines += ['', *_phase(phase, mixed)]
  return '\n'.join(lines) + '\n'


def _phase(phase: segments.Segment, mixed: str) -> Iterator[str]:
  """The lines of a phase."""
  rate = phase.rate
  assert rate
  rates = {'from': f'{rate.start!r}'}
  if rate.shape != 'constant':
    rates['to'] = f'{rate.end!r}'
  rates['shape'] = f'"{rate.shape}"'
  if rate.warmup_steps:
    rates['warmup_steps'] = f'{rate.warmup_steps}'
  told = ', '.join(f'{key} = {value}' for key, value in rates.items())
  yield '[[phase]]'
  yield f'name = "{phase.phase}"'
  yield f'tokens = {phase.rows * phase.seq_len}'
  yield f'mixture = {{ {mixed} }}'
  yield f'batch = ["0:{phase.batch_size}"]'
  yield f'lr = {{ {told} }}'
  yield f'flags = {{ "data.seq_len" = {phase.seq_len} }}'


def _rates(about, step_tokens) -> tuple[list[training.Rate], int]:
  """The rates of the schedule, and the steps of the run."""
  known = about['config']['optim']
  optim = {name: known[name] for name in _RATE if name in known}
  if optim.get('schedule_steps') == segments.UNTIMED:  # At the peak so far.
    optim |= {'schedule': 'constant', 'schedule_steps': 0}
  steps = about['config']['num_steps']
  return config_lib.OptimConfig(**optim).rates(steps, step_tokens), steps


def _parts(about, run_dir: str) -> list[mixture.Part]:
  """The folders that the run has read, with their weights."""
  named = meta.data_config(about).dir
  return mixture.parse(named or (os.path.join(run_dir, 'data'),))


def _key(name: str) -> str:
  return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _number(weight: Fraction) -> str:
  """A weight as it was written: a decimal number."""
  with decimal.localcontext(prec=50):
    return f'{decimal.Decimal(weight.numerator) / weight.denominator:f}'
