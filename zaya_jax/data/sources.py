# SPDX-License-Identifier: Apache-2.0
"""The folders that a run reads: those of --data.dir, or of its recipe."""

import dataclasses
import functools
import os
from collections.abc import Sequence

from pipelines import order
from pipelines.shards import manifest, mixture
from zaya_jax import config as config_lib
from zaya_jax.checkpoint import folders as folders_lib
from zaya_jax.config.recipe import phase as phase_lib
from zaya_jax.config.recipe import segments
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
  there = folders(config)
  known = [_known(folder) for folder in there]
  check(config.course, known)  # Before time is spent on preparing.
  _prepare(config)
  if not all(known):
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
  return _stretches(config.course)


def check(
  course: segments.Course, manifests: Sequence[manifest.Manifest | None]
) -> None:
  """Whether the sources of a recipe can be read as its phases say.

  Args:
    course: the recipe.
    manifests: of its sources; None: one is still to be prepared, and what
      depends on it is not checked.

  Raises:
    UsageError: naming the phase and the key.
  """
  names = [source.name for source in course.recipe.sources]
  known = {n: m for n, m in zip(names, manifests, strict=True) if m}
  used = [n for p in course.recipe.phases for n in names if n in p.mixture]
  first = next((name for name in used if name in known), '')
  for phase in course.recipe.phases:
    of_phase = [s for s in course.segments if s.phase == phase.name]
    error = functools.partial(phase_lib.error, course.recipe.path, phase.name)
    for name, data in known.items():
      if name not in phase.mixture:
        continue
      if data.tokenizer_sha256 != known[first].tokenizer_sha256:
        raise error(
          f'mixture.{name}',
          f' was tokenized with {data.tokenizer}, and {first} with '
          f'{known[first].tokenizer} (or another version of it); prepare all '
          'sources with the same one.',
        )
      extent, seq_len = _extent(data), of_phase[0].seq_len
      if not extent.fits(seq_len):
        raise error(
          f'flags."data.seq_len" = {seq_len}',
          f' fits no window into records of {data.record_tokens} tokens of '
          f'{name}; choose a divisor, or a power of two times it up to '
          f'{extent.group_tokens}.',
        )
      if not extent.windows(seq_len):
        raise error(
          f'mixture.{name}', ' has no token to predict; give more text.'
        )
  for phase in course.recipe.phases:
    if phase.max_epochs:
      _check_epochs(course, manifests, phase)


def _check_epochs(course, manifests, phase) -> None:
  """Whether no source is read more often than a phase allows.

  The order says how often: a share may be less than a row, and rows that become
  longer leave tokens to the next epoch.
  """
  last = [s for s in course.segments if s.phase == phase.name][-1]
  stretches = _stretches(course)[: last.index + 1]
  read = [any(s.weights[i] for s in stretches) for i in range(len(manifests))]
  if any(r and not data for r, data in zip(read, manifests, strict=True)):
    return
  extents = [
    _extent(data) if data else order.Extent(0, 1) for data in manifests
  ]
  rows = order.Order(extents, stretches, course.whole.seed)
  names = [source.name for source in course.recipe.sources]
  for name, most in phase.max_epochs.items():
    number = names.index(name)
    times = rows.epochs(last.stop_row)[number]
    if times > most:
      missing = (times - most) / most * extents[number].tokens
      raise phase_lib.error(
        course.recipe.path,
        phase.name,
        f'max_epochs.{name} = {most:g}',
        f' is less than the {times:.6g} times that it is read by the end of '
        f'the phase: about {text.short(missing)} tokens are missing; add text, '
        'lower the share or the budget, or raise it.',
      )


def _known(folder: str) -> manifest.Manifest | None:
  """The manifest of a folder; None: there is none yet."""
  return manifest.read(folder) if manifest.exists(folder) else None


def _extent(data: manifest.Manifest) -> order.Extent:
  return order.Extent(data.splits['train'].tokens, data.record_tokens)


def _stretches(course: segments.Course) -> list[order.Stretch]:
  return [
    order.Stretch(segment.rows, segment.seq_len, segment.weights)
    for segment in course.segments
  ]


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
