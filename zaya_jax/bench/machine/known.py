# SPDX-License-Identifier: Apache-2.0
"""Machines that come with the program: what was measured here, or published.

`shipped/*.toml` has each value with its source. A file of --mode=bench takes
the place of one of them where there is such a machine.
"""

import functools
import pathlib
import re
import tomllib
from collections.abc import Iterator
from typing import Any

from zaya_jax.bench.machine import bus, file
from zaya_jax.bench.sweep import record

_FOLDER = pathlib.Path(__file__).parent / 'shipped'
NAMES = tuple(sorted(path.stem for path in _FOLDER.glob('*.toml')))
_UNITS = {'gemm': 'TFLOP/s', 'peak': 'TFLOP/s', 'operations': 'TFLOP/s'}
_DAY = re.compile(r'20\d\d-\d\d-\d\d')


def find(word: str, chip: str | None = None) -> file.Machine:
  """The machine that a flag names.

  Args:
    word: one of `NAMES`, or the path of a machine file.
    chip: a part of the `device_kind` that it must be of; None: any.

  Raises:
    MachineFileError: if it is of another chip, is no such file, or is not as
      it was written.
  """
  machine = read(word) if word in NAMES else file.read(word)
  if chip is not None and chip.upper() not in machine.chip.upper():
    raise file.MachineFileError(
      f'{word} is of {machine.chip} and not of {chip}; name the file of that '
      'machine, or measure it.'
    )
  return machine


@functools.cache
def read(name: str) -> file.Machine:
  """One of `NAMES`."""
  content = tomllib.loads((_FOLDER / f'{name}.toml').read_text())
  curves: dict[str, list[dict[str, Any]]] = {}
  for curve in content.pop('curve'):
    curves.setdefault(curve['section'], []).append(curve)
  return file.Machine(
    **content,
    sections={name: _section(name, found) for name, found in curves.items()},
  )


def _section(name: str, curves: list[dict[str, Any]]) -> file.Section:
  sources = tuple(dict.fromkeys(curve['source'] for curve in curves))
  return file.Section(
    unit=_UNITS.get(name, 'GB/s'),
    # The newest; what was published says no day.
    date=max(_DAY.findall(' '.join(sources)), default=''),
    versions={},
    points=tuple(point for curve in curves for point in _points(curve)),
    notes=sources,
  )


def _points(curve: dict[str, Any]) -> Iterator[record.Point]:
  case, devices = curve['case'], curve['devices']
  factor = 1.0
  if curve['section'] == 'collectives':
    factor = bus.FACTORS[case](devices)
  for size, *rest in curve['points']:
    if curve['section'] == 'operations':
      work, seconds, low, high = rest
    else:
      work, rates = factor * size, rest if len(rest) == 3 else rest * 3
      seconds, high, low = (work / rate for rate in rates)
    yield record.Point(
      case=case, devices=devices, size=size, work=work, seconds=seconds,
      low=low, high=high, samples=0, calls=0, about=curve['source'],
    )  # fmt: skip
