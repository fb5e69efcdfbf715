# SPDX-License-Identifier: Apache-2.0
"""The machine whose measurements a plan takes."""

from zaya_jax import config as config_lib
from zaya_jax.bench.machine import file, known
from zaya_jax.plan.cost import rates
from zaya_jax.runtime import chips as chips_lib

NONE = 'none'  # Data sheets alone.


def of_plan(config: config_lib.Config) -> file.Machine | None:
  """That of --machine, else what comes with the program for --plan.chip.

  Raises:
    UsageError: if the file is of another chip, is none, or was edited.
  """
  chip = config.plan.chip
  word = config.machine or (chip if chip in known.NAMES else NONE)
  if word == NONE:
    return None
  try:
    return known.find(word, chips_lib.CHIPS[chip].name)
  except file.MachineFileError as error:
    raise config_lib.UsageError(
      f'--machine={word} does not fit --plan.chip={chip}: {error}'
    ) from error


def rates_of(config: config_lib.Config) -> rates.Rates:
  """The speed of a device of a plan.

  Raises:
    UsageError: as `of_plan`.
  """
  chip = chips_lib.CHIPS[config.plan.chip]
  return rates.Rates(chip, of_plan(config), config.plan.efficiency)
