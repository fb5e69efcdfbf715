# SPDX-License-Identifier: Apache-2.0
"""Where a run is in its recipe."""

import dataclasses
import os

from zaya_jax import config as config_lib
from zaya_jax.checkpoint import folders, meta
from zaya_jax.checkpoint.reading import resuming
from zaya_jax.config.recipe import segments
from zaya_jax.data import history
from zaya_jax.runtime import supervised


def enter(config: config_lib.Config) -> config_lib.Config:
  """The settings of the segment in which a run goes on.

  The newest checkpoint decides: a run is in one segment from one boundary, at
  which there is one, to the next.

  Raises:
    UsageError: if the recipe says something else of what was trained.
    CheckpointError: as `resuming.newest`.
  """
  course, row = config.course, 0
  if not course:
    return config
  own = folders.root(config.run_dir)
  step = resuming.newest(config.run_dir) if os.path.isdir(own) else None
  if step is not None and config.resume:
    about = meta.read(os.path.join(own, str(step)))
    history.check(config, course, about, step)
    row = _without(
      course, about['data_index'], supervised.batches_to_skip(step)
    )
    course = segments.counted_from(course, row, step)
  config = dataclasses.replace(config, course=course)
  return segments.segment_config(config, segments.at(course.segments, row))


def next_row(config: config_lib.Config, row: int, skipped: int) -> int:
  """Where in the data a run goes on.

  Args:
    config: of the segment in which it goes on.
    row: next, as the checkpoint says.
    skipped: batches to leave out; of a recipe, those of one segment alone.
  """
  if not config.course:
    return row + skipped * config.data.batch_size
  return _without(config.course, row, skipped)


def _without(course, row, skipped) -> int:
  """The row after some batches of the segment of `row`."""
  here = segments.at(course.segments, row)
  return min(row + skipped * here.batch_size, here.stop_row)
