# SPDX-License-Identifier: Apache-2.0
"""The plan of a recipe: a plan for each of its segments, and their sum."""

import dataclasses
from collections.abc import Callable
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.config.recipe import segments

_DAY = 86_400
Make = Callable[[config_lib.Config], dict[str, Any]]


def make(config: config_lib.Config, make_one: Make) -> dict[str, Any]:
  """The plan of a run with a recipe.

  Args:
    config: of the run.
    make_one: plans a run without one.

  Returns:
    path of the recipe; segments, each with what it is, what it costs and its
    own plan; total.

  Raises:
    UsageError: of `make_one`, naming the phase.
  """
  plans: list[dict[str, Any]] = []
  segments.in_each(config, lambda part: plans.append(make_one(_flat(part))))
  course = segments.course(config)
  every = config.checkpoint.every
  rows = [
    _segment(config, here, plan, every)
    for here, plan in zip(course.segments, plans, strict=True)
  ]
  last = course.segments[-1]
  sums = ('seconds', 'days', 'device_hours', 'checkpoints', 'checkpoint_bytes')
  return {
    'recipe': course.recipe.path,
    'segments': rows,
    'total': {
      'tokens': last.stop_token,
      'steps': last.stop_step,
      **{name: sum(row[name] for row in rows) for name in sums},
      'memory': max(row['memory'] for row in rows),
    },
  }


def kinds(config: config_lib.Config) -> dict[str, config_lib.Config]:
  """Runs without a recipe whose steps are those of its phases.

  Returns:
    By the name of a phase, its settings when it ends; phases with the same
    step, but for numbers that it is given, are named by the first.
  """
  found: dict[tuple, tuple[str, config_lib.Config]] = {}
  course = segments.course(config)
  for here in course.segments if course else ():
    part = _flat(segments.segment_config(config, here))
    data, mesh = part.data, part.mesh
    key = (data.seq_len, data.batch_size, mesh, part.optim.accumulation)
    if here.closes:
      found.setdefault(key, (here.phase, part))
  return dict(found.values())


def _flat(part: config_lib.Config) -> config_lib.Config:
  """The settings of a segment as those of a run of its own."""
  here = segments.current(part)
  return dataclasses.replace(part, recipe='', course=None, num_steps=here.steps)


def _segment(config, here, plan, every) -> dict[str, Any]:
  """What a segment is and costs."""
  step, names = plan['time']['step'], segments.course(config).recipe.sources
  # The last of the segment is saved too.
  saves = -(-here.steps // every) if every else 1
  return {
    'phase': here.phase,
    'tokens': here.rows * here.seq_len,
    'steps': here.steps,
    'seq_len': here.seq_len,
    'batch_size': here.batch_size,
    'mixture': {
      source.name: float(weight)
      for source, weight in zip(names, here.weights, strict=True)
      if weight
    },
    'learning_rate': [
      here.learning_rate(row) for row in (here.first_row, here.stop_row)
    ],
    'mesh': plan['mesh'],
    'memory': plan['memory']['total'],
    'capacity': plan['memory']['capacity'],
    'sent': sum(c['bytes'] for c in plan['collectives']),
    'step': step,
    'seconds': here.steps * step,
    'days': here.steps * step / _DAY,
    'device_hours': here.steps * step * plan['devices'] / 3600,
    'mfu': plan['time']['mfu'],
    'iops': plan['data']['iops'],
    'checkpoints': saves,
    'checkpoint_bytes': saves * plan['checkpoint']['bytes'],
    'plan': plan,
  }
