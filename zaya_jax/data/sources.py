# SPDX-License-Identifier: Apache-2.0
"""The folders that a run reads: those of --data.dir, or of its recipe."""

import dataclasses
import functools
import os
from collections.abc import Sequence

from pipelines import manifest, mixture, order
from zaya_jax import config as config_lib
from zaya_jax.checkpoint import folders as folders_lib
from zaya_jax.config import phase as phase_lib
from zaya_jax.config import segments
from zaya_jax.data import prepare
from zaya_jax.metrics import text
from zaya_jax.runtime import processes


def open_all(config: config_lib.Config) -> list[mixture.Part]:
  """All folders, with their weights in the segment that `config` is of.

  Those of a recipe are prepared, where they are texts, and checked. A source
  that the segment does not read has the weight 0.

  Raises:
    UsageError: if the sources cannot be read as the recipe says.
    DataError: if --data.dir is wrong, or a text cannot be used.
  """
  if not config.course:
    return mixture.parse(folders(config))
  _prepare(config)
  there = folders(config)
  check(config.course, [manifest.read(folder) for folder in there])
  weights = segments.current(config).weights
  return [
    mixture.Part(directory=directory, weight=weight)
    for directory, weight in zip(there, weights, strict=True)
  ]


def of_the_whole(
  config: config_lib.Config, parts: Sequence[mixture.Part]
) -> list[mixture.Part]:
  """`parts` with their shares of the tokens of all phases.

  By these the held-out loss is a mean: it means the same in every phase.
  """
  if not config.course:
    return list(parts)
  return [
    dataclasses.replace(
      part,
      weight=sum(
        s.rows * s.seq_len * s.weights[i] for s in config.course.segments
      ),
    )
    for i, part in enumerate(parts)
  ]


def folders(config: config_lib.Config) -> tuple[str, ...]:
  """What the loader is to open: of a plain run with weights."""
  if config.course:
    sources = config.course.recipe.sources
    return tuple(source.folder(config.run_dir) for source in sources)
  return config.data.dir or (os.path.join(config.run_dir, 'data'),)


def stretches(config: config_lib.Config) -> list[order.Stretch]:
  """How the rows of a recipe are read; of a plain run --data.dir says it."""
  if not config.course:
    return []
  return [
    order.Stretch(segment.rows, segment.seq_len, segment.weights)
    for segment in config.course.segments
  ]


def check(
  course: segments.Course, manifests: Sequence[manifest.Manifest]
) -> None:
  """Whether the sources of a recipe can be read as its phases say.

  Args:
    course: the recipe.
    manifests: of its sources.

  Raises:
    UsageError: naming the phase and the key.
  """
  path, sources = course.recipe.path, course.recipe.sources
  names = [source.name for source in sources]
  used = [[n for n in names if n in p.mixture] for p in course.recipe.phases]
  first = manifests[names.index(used[0][0])]
  for phase, its_names in zip(course.recipe.phases, used, strict=True):
    of_phase = [s for s in course.segments if s.phase == phase.name]
    for name in its_names:
      data = manifests[names.index(name)]
      if data.tokenizer_sha256 != first.tokenizer_sha256:
        raise phase_lib.error(
          path,
          phase.name,
          f'mixture.{name}',
          f' was tokenized with {data.tokenizer}, and {used[0][0]} with '
          f'{first.tokenizer} (or another version of it); prepare all sources '
          'with the same one.',
        )
      extent = order.Extent(data.splits['train'].tokens, data.record_tokens)
      if not extent.fits(of_phase[0].seq_len):
        raise phase_lib.error(
          path,
          phase.name,
          f'flags."data.seq_len" = {of_phase[0].seq_len}',
          f' fits no window into records of {data.record_tokens} tokens of '
          f'{name}; choose a divisor, or a power of two times it up to '
          f'{extent.group_tokens}.',
        )
    for name, most in phase.max_epochs.items():
      index = names.index(name)
      there = manifests[index].splits['train'].tokens * most
      read = sum(
        s.rows * s.seq_len * s.weights[index]
        for s in course.segments
        if s.first_row <= of_phase[-1].first_row
      )
      if read > there:
        raise phase_lib.error(
          path,
          phase.name,
          f'max_epochs.{name} = {most:g}',
          f' allows {text.short(there)} tokens, and {text.short(float(read))} '
          f'are read by the end of the phase: {text.short(float(read - there))}'
          ' are missing; add text, lower the share or the budget, or raise it.',
        )


def _prepare(config) -> None:
  """Prepares the sources that are texts; process 0 does.

  A run that goes on reads its shards: their text may have changed, or be gone.
  """
  whole = config.course.whole
  begun = bool(folders_lib.steps(folders_lib.root(config.run_dir)))

  def make_one(source):
    folder = source.folder(config.run_dir)
    if begun and manifest.exists(folder):
      return True
    data = segments.with_flags(whole, {'data.input': source.input}).data
    return bool(prepare.shards(data, folder))

  for source in config.course.recipe.sources:
    if source.input:
      processes.first_says(functools.partial(make_one, source))
