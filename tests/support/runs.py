# SPDX-License-Identifier: Apache-2.0
"""Runs as training leaves them, without the training."""

import pathlib

from pipelines import tokenizer as tokenizer_lib
from tests.support import tiny
from zaya_jax import config as config_lib
from zaya_jax.checkpoint import meta
from zaya_jax.checkpoint.writing import manager


def save(
  folder: pathlib.Path,
  model: config_lib.ModelConfig,
  tokenizer: str = 'bytes',
) -> pathlib.Path:
  """Saves step 70 with the values of `tiny.arrays`, and no tokenizer file."""
  data = config_lib.DataConfig(input='/home/me/secret.txt', seq_len=64)
  config = config_lib.Config(run_dir=str(folder), model=model, data=data)
  params, buffers = tiny.arrays(model)
  about = meta.describe(
    config,
    flags=config.to_flagfile(),
    tokenizer_sha256=tokenizer_lib.load(tokenizer).sha256,
    dataset_sha256='',
    tokens=12345,
    metrics={'train/loss': 1.5, 'val/bpb': 2.25},
  )
  with manager.Manager(str(folder), config.checkpoint) as checkpoints:
    state = {'params': params, 'buffers': buffers}
    checkpoints.save(70, state, data_index=0, meta=about)
  return folder
