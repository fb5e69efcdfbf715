# SPDX-License-Identifier: Apache-2.0
"""--mode=supervise: a supervised run, a drill, or decisions made again."""

import sys

from zaya_jax import config as config_lib


def main(config: config_lib.Config) -> int:
  """Does what --drill or --aegis.replay ask for, else supervises a run.

  Returns:
    The exit code: that of training, 75 where a budget is used up or a signal
    came, 93 where restarts bring no progress.

  Raises:
    UsageError: if a setting is wrong.
    CheckpointError: with exit code 2, if another supervisor or training holds
      the run directory.
  """
  if config.aegis.replay:
    from zaya_jax.aegis.supervisor import replay

    return replay.run(config.aegis.replay)
  if config.drill:
    from zaya_jax.aegis.drills import mode

    return mode.main(config)
  from zaya_jax.aegis.supervisor import supervisor

  return supervisor.supervise(config, (sys.executable, '-m', 'zaya_jax.main'))
