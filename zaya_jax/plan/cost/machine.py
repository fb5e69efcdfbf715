# SPDX-License-Identifier: Apache-2.0
"""The machine whose measurements a plan or a run takes: --machine."""

from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.bench.machine import file, known
from zaya_jax.plan.cost import network, rates
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
  return _find(word, chips_lib.CHIPS[chip].name, f'--plan.chip={chip}')


def of_run(config: config_lib.Config, kind: str) -> file.Machine | None:
  """That of --machine, for devices of this `device_kind`; None: none is named.

  Raises:
    UsageError: as `of_plan`.
  """
  if config.machine in ('', NONE):
    return None
  return _find(config.machine, kind, 'the devices here')


def engines(config: config_lib.Config, kind: str) -> list[Any]:
  """Times of engines for `ops.dispatch.measured`, as `of_run`."""
  machine = of_run(config, kind)
  section = machine.sections.get('operations') if machine else None
  if not section:
    return []
  # It imports jax, which a plan does without.
  from zaya_jax.bench import operations

  return operations.rows(section.points)


def bucket(config: config_lib.Config, kind: str, devices: int) -> int:
  """Bytes up to which messages are fused; 0: as XLA does.

  What --mesh.bucket_mib says, else where the links of --machine are saturated:
  larger messages would be as fast, and begin later.

  Args:
    config: of the run.
    kind: `device_kind`.
    devices: that sum a gradient.
  """
  if config.mesh.bucket_mib or devices == 1:
    return 2**20 * config.mesh.bucket_mib
  machine = of_run(config, kind)
  chip = next(
    (c for c in chips_lib.CHIPS.values() if c.name in kind.upper()), None
  )
  if machine is None or chip is None:
    return 0
  group = network.Group(devices, min(devices, chip.node))
  return network.saturation(chip, machine, 'reduce-scatter', group)


def _find(word: str, chip: str, whose: str) -> file.Machine:
  try:
    return known.find(word, chip)
  except file.MachineFileError as error:
    raise config_lib.UsageError(
      f'--machine={word} does not fit {whose}: {error}'
    ) from error


def rates_of(config: config_lib.Config) -> rates.Rates:
  """The speed of a device of a plan.

  Raises:
    UsageError: as `of_plan`.
  """
  chip = chips_lib.CHIPS[config.plan.chip]
  return rates.Rates(chip, of_plan(config), config.plan.efficiency)
