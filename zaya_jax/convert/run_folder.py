# SPDX-License-Identifier: Apache-2.0
"""A run directory whose step 0 is what was imported."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

from pipelines import tokenizer as tokenizer_lib
from zaya_jax import config as config_lib
from zaya_jax.checkpoint import folders, meta
from zaya_jax.checkpoint.writing import stream


def settings(
  config: config_lib.Config,
  output: str,
  tokenizer: tokenizer_lib.Tokenizer | None,
  **changes: Any,
) -> config_lib.Config:
  """The settings of the run that an import makes.

  Args:
    config: of the import.
    output: the run directory.
    tokenizer: that lies in it; None: there is none.
    **changes: of the settings, by field.
  """
  data = config.data
  if tokenizer:
    path = os.path.join(output, tokenizer_lib.FILE_NAME)
    data = dataclasses.replace(data, tokenizer=path)
  return dataclasses.replace(
    config,
    mode='train',
    source='',
    output='',
    run_dir=output,
    data=data,
    **changes,
  )


def write(
  partial: str,
  config: config_lib.Config,
  tree: Any,
  tokenizer_sha256: str,
  progress: Callable[[int], None] = lambda _: None,
  more: Mapping[str, Any] | None = None,
) -> None:
  """Writes config.flags and the checkpoint of step 0.

  Args:
    partial: the folder, which gets its name later.
    config: of `settings`.
    tree: of `stream.Array`.
    tokenizer_sha256: of the tokens that the model knows; empty: not known.
    progress: is told how many bytes were written.
    more: what the meta of the checkpoint has besides.
  """
  text = config.to_flagfile()
  with open(os.path.join(partial, 'config.flags'), 'w') as file:
    file.write(text)
  about = meta.describe(
    config,
    flags=text,
    tokenizer_sha256=tokenizer_sha256,
    dataset_sha256='',
    tokens=0,
    metrics={},
  )
  directory = os.path.join(folders.root(partial), '0')
  stream.write(directory, tree, {**about, **(more or {})}, progress)
