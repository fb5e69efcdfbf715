# SPDX-License-Identifier: Apache-2.0
"""--mode=bench of the machine: measures, shows, and writes machine.json."""

import contextlib
import dataclasses
import types
from collections.abc import Iterator

from zaya_jax import config as config_lib
from zaya_jax.bench.machine import (
  collectives,
  file,
  gemm,
  memory,
  peak,
  storage,
  tables,
  transfer,
)
from zaya_jax.bench.sweep import frame as frame_lib
from zaya_jax.runtime import processes, session

_NOUNS: dict[str, types.ModuleType] = {
  'collectives': collectives,
  'memory': memory,
  'gemm': gemm,
  'transfer': transfer,
  'storage': storage,
  'peak': peak,
}
_SHORTEST_LIMIT_S = 60.0  # The first collective sets up connections.


def main(config: config_lib.Config) -> None:
  """Measures what --bench.op names, each for --bench.minutes.

  Raises:
    UsageError: if a case has another name, or --output is another machine's.
    MachineFileError: if --output is damaged.
    WrongError: if a result is wrong.
  """
  nouns = config.bench.measurements
  _check_cases(config)
  with _joined(config) as config:
    here = file.here()  # In all processes: jax looks for devices together.
    found = processes.first_says(
      lambda: file.to_json(file.read_to_add(config.output, here))
    )
    machine = file.from_json(found)
    if processes.process() == 0:
      print(machine.name, flush=True)
    for noun in nouns:
      machine = _measure(config, noun, machine)
      if processes.process() == 0:
        tables.show(noun, machine.sections[noun])
        _write(config.output, machine)


def _measure(
  config: config_lib.Config, noun: str, machine: file.Machine
) -> file.Machine:
  """The machine with one more section."""
  module, bench = _NOUNS[noun], config.bench
  before = machine.sections.get(noun)
  goes_on = before is not None and before.missing and config.resume

  def keep(frame):
    section = file.section(
      module.UNIT,
      points=tuple(frame.points),
      notes=tuple(dict.fromkeys(frame.notes)),
      missing=tuple(dict.fromkeys(frame.missing)),
    )
    sections = {**machine.sections, noun: section}
    return dataclasses.replace(machine, sections=sections)

  def save(frame):
    # Cut off now, it has to go on.
    frame = types.SimpleNamespace(
      points=frame.points, notes=frame.notes, missing=['interrupted']
    )
    if processes.process() == 0:
      _write(config.output, keep(frame))

  wait = config.distributed.collective_timeout_s / 2  # XLA's comes later.
  frame = frame_lib.Frame(
    minutes=bench.minutes,
    repeats=bench.repeats,
    cases=bench.case,
    words=module.WORDS,
    hang_s=min(wait, max(_SHORTEST_LIMIT_S, 60 * bench.minutes)),
    known=before.points if before and goes_on else (),
    keep=save,
  )
  frame.tell(f'{noun}, for {bench.minutes:g} min')
  module.run(frame, config)
  return keep(frame)


def _write(path: str, machine: file.Machine) -> None:
  if path:
    file.write(path, machine)


def _check_cases(config: config_lib.Config) -> None:
  """Refuses cases that nothing has; those of shapes ask for the device."""
  nouns = config.bench.measurements
  if not config.bench.case:
    return
  known = [case for noun in nouns for case in _NOUNS[noun].cases(config)]
  for case in config.bench.case:
    if case not in known:
      raise config_lib.UsageError(
        f'--bench.case={case} is none of the cases of --bench.op='
        f'{",".join(nouns)}: {", ".join(known)}.'
      )


@contextlib.contextmanager
def _joined(config: config_lib.Config) -> Iterator[config_lib.Config]:
  """Meets the other processes, where there are any."""
  place = config_lib.DistributedConfig()
  text = dataclasses.replace(config, distributed=place).to_flagfile()
  with session.join(config, text) as config:
    yield config
