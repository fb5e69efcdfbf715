# SPDX-License-Identifier: Apache-2.0
"""machine.json: what was measured on a machine, for people and planners.

It says of which machine it is, when and with which versions each part was
measured, and a hash of all that: numbers that somebody has edited are refused.
"""

import dataclasses
import datetime
import hashlib
import json
import math
import os
import pathlib
from importlib import metadata
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.bench.sweep import record
from zaya_jax.config import exit_codes
from zaya_jax.runtime import durable

_FORMAT = 1
_PACKAGES = ('jax', 'jaxlib')


class MachineFileError(ValueError):
  """A file that is no machine.json, or is damaged; one sentence."""

  exit_code = exit_codes.UNUSABLE


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section:
  """One kind of measurement.

  Attributes:
    unit: of rates: 'GB/s' or 'TFLOP/s'.
    date: of its end, UTC.
    versions: of Python packages.
    points: what was measured.
    notes: what could not be measured, and why.
    missing: curves for which there was no time; the same command goes on.
  """

  unit: str
  date: str
  versions: dict[str, str]
  points: tuple[record.Point, ...] = ()
  notes: tuple[str, ...] = ()
  missing: tuple[str, ...] = ()

  @property
  def scale(self) -> float:
    """How many of a rate's bytes or FLOPs a second are one of its unit."""
    return {'GB/s': 1e9, 'TFLOP/s': 1e12}[self.unit]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
  """A machine and what it can do.

  Attributes:
    chip: `device_kind` of its devices.
    platform: 'cpu', 'gpu' or 'rocm', as jax calls it.
    devices: of all processes.
    processes: that shared them.
    sections: by kind of measurement.
  """

  chip: str
  platform: str
  devices: int
  processes: int
  sections: dict[str, Section] = dataclasses.field(default_factory=dict)

  @property
  def name(self) -> str:
    """The machine in words."""
    return (
      f'{self.devices} x {self.chip} ({self.platform}) of '
      f'{self.processes} process{"es" if self.processes > 1 else ""}'
    )

  def collective_s(self, kind: str, size: float, devices: int) -> float:
    """Seconds of one collective, for planners.

    Between sizes and between numbers of devices that were measured, on a
    straight line in logarithms.

    Args:
      kind: 'all-reduce' and its like, as `collectives.KINDS`.
      size: bytes, the larger of what a device sends and receives.
      devices: that take part.

    Raises:
      LookupError: if it was not measured on so many devices.
    """
    section = self.sections.get('collectives')
    points = section.points if section else ()
    # One point is no curve: it says what messages of its size take.
    counts = sorted(
      n
      for n in {p.devices for p in points}
      if len(record.curve(points, kind, n)) > 1
    )
    if not counts or not counts[0] <= devices <= counts[-1]:
      raise LookupError(
        f'{kind} is measured on {counts or "no"} devices, not on {devices}; '
        'measure it there by --mode=bench --bench.op=collectives.'
      )
    below = max(n for n in counts if n <= devices)
    above = min(n for n in counts if n >= devices)
    one, two = (
      record.seconds(record.curve(points, kind, n), size)
      for n in (below, above)
    )
    if below == above:
      return one
    share = math.log(devices / below) / math.log(above / below)
    return one * (two / one) ** share


def here() -> Machine:
  """The machine of this command, without measurements."""
  # Who reads a file, as a plan does, needs no jax.
  import jax

  from zaya_jax.runtime import processes

  device = jax.devices()[0]
  return Machine(
    chip=device.device_kind,
    platform=device.platform,
    devices=jax.device_count(),
    processes=processes.processes(),
  )


def section(unit: str, **known: Any) -> Section:
  """A section of measurements that were made now, by what is installed."""
  now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
  versions = {name: metadata.version(name) for name in _PACKAGES}
  versions['zaya_jax'] = config_lib.VERSION
  return Section(unit=unit, date=now.isoformat(), versions=versions, **known)


def write(path: str, machine: Machine) -> None:
  """Writes the file whole, or not at all."""
  content = {'format': _FORMAT, **to_json(machine)}
  text = json.dumps({**content, 'sha256': _hash(content)}, indent=1)
  durable.replace(path, f'{text}\n'.encode())


def read(path: str, chip: str | None = None) -> Machine:
  """Reads and checks a machine file.

  Args:
    path: of the file.
    chip: `device_kind` that it must be of; None: any.

  Raises:
    MachineFileError: if it is of another chip, is no such file, or is not as
      it was written.
  """
  try:
    content = json.loads(pathlib.Path(path).read_text())
    said = content.pop('sha256')
    form = content.pop('format')
  except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
    raise MachineFileError(
      f'{path} is no machine file ({type(error).__name__}: {error}); '
      '--mode=bench --bench.op=machine --output=FILE.json writes one.'
    ) from error
  if form != _FORMAT:
    raise MachineFileError(
      f'{path} has format {form} and this program reads {_FORMAT}; measure '
      'again into another file.'
    )
  if said != _hash({'format': form, **content}):
    raise MachineFileError(
      f'{path} was changed since it was written: its sha256 is another; '
      'measure again into another file.'
    )
  try:
    machine = from_json(content)
  except (KeyError, TypeError, AttributeError) as error:
    raise MachineFileError(
      f'{path} lacks what a machine file has ({error}); measure again into '
      'another file.'
    ) from error
  if chip is not None and machine.chip != chip:
    raise MachineFileError(
      f'{path} is of {machine.chip} and not of {chip}; name the file of that '
      'machine, or measure it.'
    )
  return machine


def read_to_add(path: str, mine: Machine) -> Machine:
  """The file to which this command adds, or `mine` where there is none.

  Args:
    path: of the file; '': none.
    mine: the machine of this command, without measurements.

  Raises:
    UsageError: if it is that of another machine.
    MachineFileError: if it is no machine file, or is damaged.
  """
  if not path or not os.path.exists(path):
    return mine
  found = read(path)
  if dataclasses.replace(found, sections={}) != mine:
    raise config_lib.UsageError(
      f'--output={path} holds measurements of {found.name} and this is '
      f'{mine.name}; name another file.'
    )
  return found


def to_json(machine: Machine) -> dict[str, Any]:
  """The machine as lists and dictionaries."""
  return json.loads(json.dumps(dataclasses.asdict(machine)))


def from_json(content: dict[str, Any]) -> Machine:
  """What `to_json` has made."""
  sections = {
    name: Section(
      **{
        **known,
        'points': tuple(record.Point(**p) for p in known['points']),
        'notes': tuple(known['notes']),
        'missing': tuple(known['missing']),
      }
    )
    for name, known in content['sections'].items()
  }
  return Machine(**{**content, 'sections': sections})


def _hash(content: dict[str, Any]) -> str:
  return hashlib.sha256(
    json.dumps(content, sort_keys=True).encode()
  ).hexdigest()
