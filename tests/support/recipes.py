# SPDX-License-Identifier: Apache-2.0
"""Runs by a recipe that a test has written."""

import dataclasses
import pathlib

from zaya_jax import config as config_lib
from zaya_jax.config.recipe import segments


def config(
  folder: pathlib.Path,
  text: str,
  *,
  run_dir: str = 'run',
  batch_size: int = 4,
) -> config_lib.Config:
  """Settings of the whole run, with its course; rows have 16 tokens."""
  path = folder / 'r.toml'
  path.write_text(text)
  data = config_lib.DataConfig(seq_len=16, batch_size=batch_size)
  made = config_lib.Config(recipe=str(path), run_dir=run_dir, data=data)
  return dataclasses.replace(made, course=segments.course(made))


def entered(found: config_lib.Config, index: int) -> config_lib.Config:
  """Settings in one of the segments."""
  return segments.segment_config(found, found.course.segments[index])
