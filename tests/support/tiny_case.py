# SPDX-License-Identifier: Apache-2.0
"""A case of `benchmarks.cases` with a tiny model."""

import argparse

from benchmarks import cases
from tests.support import tiny
from zaya_jax import config as config_lib

_SIZES = {**tiny.SIZES, 'num_experts': 4, 'd_router': 8, 'vocab_size': 64}
FLAGS = [
  *tiny.FLAGS,
  *(f'--model.{name}={size}' for name, size in _SIZES.items()),
]


def config(
  mesh: str, devices: int, rows: int = 2, parts: int = 2
) -> config_lib.Config:
  """The run of a case on the first CPU devices."""
  args = argparse.Namespace(
    preset='zaya1_8b', rows=rows, parts=parts, platform='cpu', chip='h200'
  )
  return cases.make_config(mesh, devices, args, FLAGS)
