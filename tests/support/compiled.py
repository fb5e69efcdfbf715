# SPDX-License-Identifier: Apache-2.0
"""One program for runs that differ in what they do between their steps."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from zaya_jax import config as config_lib
from zaya_jax.inference import score
from zaya_jax.train import state as state_lib
from zaya_jax.train import step as step_lib

_BETWEEN = ('run_dir', 'checkpoint', 'eval', 'generate', 'log')
# What makes functions for `jax.jit`, which traces and compiles each once.
_MAKERS = (
  (step_lib, 'make_jitted'),
  (state_lib, 'make_init'),
  (score, 'make_eval_step'),
)


def once() -> Iterator[None]:
  """For a fixture of a module: its runs share what they jit."""
  with pytest.MonkeyPatch.context() as patch:
    for module, name in _MAKERS:
      patch.setattr(module, name, _kept(getattr(module, name)))
    yield


def _kept(make: Callable[..., Any]) -> Callable[..., Any]:
  """Makes once for all configs that mean the same program."""
  kept: dict[Any, Any] = {}

  def of(config, *how):
    key = config, *how
    if isinstance(config, config_lib.Config):
      key = (_program(config),)  # What else is given follows from it.
    if key not in kept:
      kept[key] = make(config, *how)
    return kept[key]

  return of


def _program(config: config_lib.Config) -> config_lib.Config:
  """The settings of which a program is made."""
  same = {name: getattr(config_lib.Config(), name) for name in _BETWEEN}
  if config.course:  # It has its segments, and what else it was made of.
    same['course'] = dataclasses.replace(config.course, recipe=None, whole=None)
  else:  # The number of steps is that of the schedule, if it has none.
    steps = config.optim.schedule_steps or config.num_steps
    same['optim'] = dataclasses.replace(config.optim, schedule_steps=steps)
    same['num_steps'] = config_lib.Config().num_steps
  return dataclasses.replace(config, **same)
