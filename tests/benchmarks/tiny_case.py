# SPDX-License-Identifier: Apache-2.0
"""A case of `benchmarks.cases` with a tiny model."""

import argparse

from benchmarks import cases
from tests import tiny
from zaya_jax import config as config_lib

FLAGS = [
  *tiny.FLAGS,
  *"""
  --model.num_heads=4
  --model.num_kv_heads=2
  --model.head_dim=4
  --model.num_experts=4
  --model.d_expert=8
  --model.vocab_size=64
  --model.dtype=float32
""".split(),
]


def config(
  mesh: str, devices: int, rows: int = 2, parts: int = 2
) -> config_lib.Config:
  """The run of a case on the first CPU devices."""
  args = argparse.Namespace(rows=rows, parts=parts, platform='cpu', chip='h200')
  return cases.make_config(mesh, devices, args, FLAGS)
