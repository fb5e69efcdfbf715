# SPDX-License-Identifier: Apache-2.0
"""Where a run is in its recipe, and what it takes with it from there on."""

import dataclasses
import os
from collections.abc import Callable

import jax

from zaya_jax import config as config_lib
from zaya_jax.checkpoint import folders, meta
from zaya_jax.checkpoint.reading import resuming
from zaya_jax.config import segments
from zaya_jax.optim import spikes
from zaya_jax.parallel import mesh as mesh_lib
from zaya_jax.runtime import supervised
from zaya_jax.train import history, traced
from zaya_jax.train import state as state_lib


def check(config: config_lib.Config) -> config_lib.Config:
  """Whether the meshes of all segments can be made and divide what they must.

  Returns:
    The settings with the recipe as it is now, whatever becomes of its file.

  Raises:
    UsageError: naming the phase.
    UnsupportedError: if an engine that --ops.* names cannot run.
  """
  course = segments.course(config)
  if not course:
    _check_one(config)
    return config
  config = dataclasses.replace(config, course=course)
  for segment in course.segments:
    part = segments.segment_config(config, segment)
    segments.naming_phase(course.recipe, segment.phase, _check_one, part)
  return config


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
    history.check(config, course, about)
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
  here = segments.current(config)
  if not config.course:
    return row + skipped * here.batch_size
  # Leaving out has led to this segment, or it does not lead out of it.
  return max(here.first_row, _without(config.course, row, skipped))


def begin_segment(
  config: config_lib.Config,
  state: state_lib.TrainState,
  row: int,
  init: Callable[[], state_lib.TrainState],
  mesh: jax.sharding.Mesh,
) -> state_lib.TrainState:
  """The state at the beginning of a segment, of that at the end of another.

  The window of spikes begins anew: loss and gradient norm are those of other
  data. So does the optimizer, where only parameters are to be kept.

  Args:
    config: of the segment.
    state: of the checkpoint.
    row: next, as the checkpoint says.
    init: makes a new state.
    mesh: of the segment.
  """
  here = segments.current(config)
  if not here.index or row > here.first_row:
    return state

  def fresh():
    if here.keep == 'all':
      return {'recent': spikes.init()}
    names = ('recent', 'opt_state', 'balance_state')
    return {name: getattr(init(), name) for name in names}

  with jax.set_mesh(mesh):
    return dataclasses.replace(state, **jax.jit(fresh)())


def _check_one(config):
  mesh = mesh_lib.make_mesh(config.mesh)
  state_lib.check(config, mesh)
  if config.ops != config_lib.OpsConfig():  # Named engines may not run.
    traced.trace(config, mesh)


def _without(course, row, skipped) -> int:
  """The row after some batches of the segment of `row`."""
  here = segments.at(course.segments, row)
  return min(row + skipped * here.batch_size, here.stop_row)
