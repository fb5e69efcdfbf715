# SPDX-License-Identifier: Apache-2.0
"""--mode=bench of the machine: measures, shows, and writes machine.json."""

import contextlib
import dataclasses
import os
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


def main(config: config_lib.Config, operations: types.ModuleType) -> None:
  """Measures what --bench.op names, each for --bench.minutes.

  Args:
    config: of the command.
    operations: `bench.operations`, which is as the modules here are.

  Raises:
    UsageError: if a case has another name, or --output is another machine's.
    MachineFileError: if --output is damaged.
    WrongError: if a result is wrong.
  """
  known = {**_NOUNS, 'operations': operations}
  nouns = _nouns(config, known)
  with _joined(config) as config:
    here = file.here()  # In all processes: jax looks for devices together.
    found = processes.first_says(
      lambda: file.to_json(file.read_to_add(config.output, here))
    )
    machine = file.from_json(found)
    if processes.process() == 0:
      os.makedirs(os.path.dirname(config.output) or '.', exist_ok=True)
      print(machine.name, flush=True)
    for noun in _left(config, nouns, machine):
      machine = _measure(config, noun, known[noun], machine)
      _write(config.output, machine)
      if processes.process() == 0:
        tables.show(noun, machine.sections[noun])


def _measure(
  config: config_lib.Config,
  noun: str,
  module: types.ModuleType,
  machine: file.Machine,
) -> file.Machine:
  """The machine with one section more, or one that goes on."""
  bench = config.bench
  before = machine.sections.get(noun) or file.section(module.UNIT)
  mine = lambda case: not bench.case or case in bench.case
  if before.versions != file.section(module.UNIT).versions:
    before = file.section(module.UNIT)  # A part is of one set of versions.
  of_mine = lambda missing: mine(missing.rpartition(' x ')[0])
  # Where nothing is missing, all is measured anew.
  goes_on = config.resume and any(map(of_mine, before.missing))
  others = tuple(p for p in before.points if not mine(p.case))
  left = tuple(p for p in before.points if goes_on and mine(p.case))
  theirs = tuple(m for m in before.missing if not of_mine(m))

  # Of a command that ends in its midst nobody knows how far it was.
  cut_off = [f'{case} x more' for case in module.cases(config) if mine(case)]

  def add(frame, missing):
    section = file.section(
      module.UNIT,
      points=(*others, *frame.points),
      notes=tuple(dict.fromkeys(frame.notes)),
      missing=tuple(dict.fromkeys((*theirs, *missing))),
    )
    sections = {**machine.sections, noun: section}
    return dataclasses.replace(machine, sections=sections)

  wait = config.distributed.collective_timeout_s / 2  # XLA's comes later.
  frame = frame_lib.Frame(
    minutes=bench.minutes,
    repeats=bench.repeats,
    cases=bench.case,
    words=module.WORDS,
    hang_s=min(wait, max(_SHORTEST_LIMIT_S, 60 * bench.minutes)),
    known=left,
    keep=lambda frame: _write(config.output, add(frame, cut_off)),
  )
  frame.tell(f'{noun}, for {bench.minutes:g} min')
  module.run(frame, config)
  return add(frame, frame.missing)


def _left(
  config: config_lib.Config, nouns: list[str], machine: file.Machine
) -> list[str]:
  """Of several parts those that an earlier command has not finished."""
  done = [
    noun
    for noun in nouns
    if (known := machine.sections.get(noun))
    and not known.missing
    and known.versions == file.section(known.unit).versions
  ]
  whole = len(done) == len(nouns) or config.bench.case or not config.resume
  return nouns if whole else [noun for noun in nouns if noun not in done]


def _write(path: str, machine: file.Machine) -> None:
  """Process 0 writes."""
  if path and processes.process() == 0:
    file.write(path, machine)


def _nouns(
  config: config_lib.Config, modules: dict[str, types.ModuleType]
) -> list[str]:
  """What to measure: all that has one of the cases.

  Raises:
    UsageError: if nothing has a case.
  """
  nouns, wanted = config.bench.measurements, set(config.bench.case)
  if not wanted:
    return list(nouns)
  known = {noun: modules[noun].cases(config) for noun in nouns}
  names = [case for cases in known.values() for case in cases]
  for case in config.bench.case:
    if case not in names:
      raise config_lib.UsageError(
        f'--bench.case={case} is none of the cases of --bench.op='
        f'{",".join(config.bench.op)}: {", ".join(names)}.'
      )
  return [noun for noun in nouns if wanted & set(known[noun])]


@contextlib.contextmanager
def _joined(config: config_lib.Config) -> Iterator[config_lib.Config]:
  """Meets the other processes, where there are any."""
  place = config_lib.DistributedConfig()
  text = dataclasses.replace(config, distributed=place).to_flagfile()
  with session.join(config, text) as config:
    yield config
