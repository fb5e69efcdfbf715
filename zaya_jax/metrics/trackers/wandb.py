# SPDX-License-Identifier: Apache-2.0
"""--log.wandb: rows and samples for Weights & Biases.

WANDB_PROJECT, WANDB_MODE=offline and what else W&B reads of the environment
hold. Its files lie in the run directory.
"""

import html
import os
import pathlib
import uuid
from collections.abc import Mapping

import wandb

from zaya_jax import config as config_lib
from zaya_jax.metrics.trackers import names

_NAME = 'wandb'


class Tracker:
  """A run at W&B, the same after each start.

  Args:
    config: of the run.

  Raises:
    UsageError: if W&B knows nobody here.
  """

  def __init__(self, config: config_lib.Config):
    run_dir = pathlib.Path(config.run_dir)
    known = names.read(run_dir, _NAME)
    name = known or uuid.uuid4().hex[:12]
    try:
      self._run = wandb.init(
        project=os.environ.get('WANDB_PROJECT', 'zaya_jax'),
        id=name,
        name=os.environ.get('WANDB_NAME', run_dir.absolute().name),
        dir=str(run_dir),
        resume='allow',
        config=names.shown(config),
        # The terminal is the reporter's, and log.txt has what it says.
        settings=wandb.Settings(silent=True, console='off'),
      )
    except wandb.errors.UsageError as error:
      raise config_lib.UsageError(
        f'--log.wandb cannot begin ({str(error).rstrip(".")}); log in, or set '
        'WANDB_MODE=offline and run `wandb sync` later.'
      ) from error
    if not known:
      names.keep(run_dir, _NAME, name)

  def scalars(self, values: Mapping[str, float], step: int) -> None:
    """Logs a row; what W&B has of later steps stays, bit for bit the same."""
    self._run.log(dict(values), step=step)

  def text(self, name: str, words: str, step: int) -> None:
    """Logs a text, its letters as they are."""
    page = f'<pre>{html.escape(words)}</pre>'
    self._run.log({name: wandb.Html(page, inject=False)}, step=step)

  def close(self) -> None:
    """Uploads what is left."""
    self._run.finish()
