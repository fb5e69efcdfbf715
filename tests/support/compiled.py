# SPDX-License-Identifier: Apache-2.0
"""One program for runs that differ in what they do between their steps."""

import dataclasses
from collections.abc import Iterator

import pytest

from zaya_jax import config as config_lib
from zaya_jax.train import step as step_lib

_BETWEEN = ('run_dir', 'checkpoint', 'eval', 'generate', 'log')


def once() -> Iterator[None]:
  """For a fixture of a module: its runs share the steps that are jitted."""
  make, kept = step_lib.make_jitted, {}

  def of(config, optimizer):
    same = {name: getattr(config_lib.Config(), name) for name in _BETWEEN}
    if config.course:  # It has its segments, and what else it was made of.
      same['course'] = dataclasses.replace(
        config.course, recipe=None, whole=None
      )
    key = dataclasses.replace(config, **same)
    if key not in kept:
      kept[key] = make(config, optimizer)
    return kept[key]

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(step_lib, 'make_jitted', of)
    yield
