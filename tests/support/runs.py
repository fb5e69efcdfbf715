# SPDX-License-Identifier: Apache-2.0
"""Runs as training leaves them, without the training."""

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from pipelines import tokenizer as tokenizer_lib
from tests.support import tiny
from zaya_jax import config as config_lib
from zaya_jax.checkpoint import meta
from zaya_jax.checkpoint.writing import manager


def save(
  folder: pathlib.Path,
  model: config_lib.ModelConfig,
  tokenizer: str = 'bytes',
  arrays: Callable[..., Any] = tiny.arrays,
) -> pathlib.Path:
  """Saves step 70 with the values of `arrays`, and no tokenizer file."""
  data = config_lib.DataConfig(input='/home/me/secret.txt', seq_len=64)
  config = config_lib.Config(run_dir=str(folder), model=model, data=data)
  params, buffers = arrays(model)
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


def save_readable(folder: pathlib.Path) -> config_lib.ModelConfig:
  """Saves a model of bytes whose likeliest texts are of x, y, z and ';'.

  A text of any other bytes would not come back from a tokenizer as it was.
  """
  model = tiny.config(
    vocab_size=264, tie_embeddings=False, skip='zero', remat='none'
  )

  def arrays(model):
    params, buffers = tiny.arrays(model)
    letters = np.isin(range(model.vocab_size), list(b'xyz;'))
    params['head'] *= np.where(letters, 1, 0.02)[:, None]
    bias = buffers['layers']['router']['balance_bias']
    # What `from_pretrained` makes of any other value.
    buffers['layers']['router']['balance_bias'] = bias.at[:, -1].set(-1.0)
    return params, buffers

  save(folder, model, arrays=arrays)
  return model
