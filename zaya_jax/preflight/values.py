# SPDX-License-Identifier: Apache-2.0
"""Texts of tools and files as values, by place: 'GPU 3', 'mlx5_0 1'.

No AMD GPU was at hand: those forms are from the documentation of amd-smi and of
the driver amdgpu.
"""

import re
from collections.abc import Callable, Mapping

from zaya_jax.aegis.watch.telemetry import gpus

Value = float | str | None  # None: the source does not say it.
Values = dict[str, Value]

_GPU = re.compile(r'^GPU (\d+):')
_SPEED = re.compile(r'^\s+Link \d+: (?:([\d.]+) GB/s|<inactive>)')
_MEMORY = 'block="umc"'
_ID = re.compile(r'gpu_id="(\d+)"')
_UNSAID = ('N/A', 'Not Supported', 'Insufficient Permissions', '')
_NUMBER = re.compile(r'-?\d+(?:\.\d+)?')


def csv(text: str) -> Values:
  """Lines INDEX, VALUE or INDEX, VALUE, WHOLE of nvidia-smi.

  Raises:
    ValueError: if a line is of another form.
  """
  found: Values = {}
  for line in text.strip().splitlines():
    place, *columns = [word.strip() for word in line.split(',')]
    if len(columns) not in (1, 2):
      raise ValueError(f'{line!r} has no value')
    numbers = [_as_number(word) for word in columns]
    value = numbers[0]
    if len(numbers) == 2:
      value = share(*numbers)
    found[f'GPU {place}'] = value
  return found


def share(part: Value, whole: Value) -> Value:
  """A part of a whole; None where one of them is no number."""
  if isinstance(part, float) and isinstance(whole, float) and whole:
    return part / whole
  return None


def _as_number(word: str) -> Value:
  """The number, the word where it is none, None for '[N/A]' and its like."""
  if word.strip('[]') in _UNSAID:
    return None
  return float(word) if _NUMBER.fullmatch(word) else word


def nvlink(text: str) -> Values:
  """GB/s of all links of each GPU together, of `nvidia-smi nvlink --status`."""
  found: Values = {}
  total, place = 0.0, ''
  for line in text.splitlines():
    if match := _GPU.match(line):
      total, place = 0.0, f'GPU {match[1]}'
      found[place] = total
    elif place and (match := _SPEED.match(line)):
      total += float(match[1] or 0)
      found[place] = round(total, 3)
  return found


def amd_metric(text: str, field: str) -> Values:
  """A counter of each GPU, of `amd-smi metric --json`."""
  return _counters(gpus.metric(text), field)


def amd_ras(text: str, field: str) -> Values:
  """1 where the memory has no ECC, of `amd-smi static --ras --json`.

  Other blocks have none on fit devices, too.
  """
  found = gpus.ras(text)
  return _counters({n: c for n, c in found.items() if _MEMORY in n}, field)


def amd_pages(text: str, field: str) -> Values:
  """How many pages are bad, of `amd-smi bad-pages --json`."""
  return _counters(gpus.pages(text), field)


def _counters(counters: Mapping[str, float], field: str) -> Values:
  found: dict[str, float] = {}
  for name, count in counters.items():
    match = _ID.search(name)
    if match and name.startswith(f'{field}{{'):
      place = f'GPU {match[1]}'
      found[place] = found.get(place, 0) + count
  return dict(found)


def number(text: str) -> Value:
  """The first number of a file, as of '400 Gb/sec (4X NDR)'."""
  match = _NUMBER.search(text)
  return float(match[0]) if match else None


def last_number(text: str) -> Value:
  """The last number, as of what df prints."""
  numbers = _NUMBER.findall(text)
  return float(numbers[-1]) if numbers else None


def word(text: str) -> Value:
  """The text of a file of one word."""
  return text.strip() or None


def state(text: str) -> Value:
  """The word of '4: ACTIVE'."""
  return text.rpartition(':')[2].strip() or None


def chosen(text: str) -> Value:
  """The word in brackets of 'always [madvise] never'."""
  match = re.search(r'\[(\S+)\]', text)
  return match[1] if match else None


def top_mhz(text: str) -> Value:
  """The highest clock of '0: 132Mhz', '1: 2100Mhz *'."""
  clocks = re.findall(r'(\d+)Mhz', text, re.IGNORECASE)
  return float(max(map(int, clocks))) if clocks else None


# Of a command's text, and of the text of each file.
OF_TEXT: Mapping[str, Callable[..., Values]] = {
  'csv': csv,
  'nvlink': nvlink,
  'amd_metric': amd_metric,
  'amd_ras': amd_ras,
  'amd_pages': amd_pages,
}
OF_EACH: Mapping[str, Callable[[str], Value]] = {
  'number': number,
  'last_number': last_number,
  'word': word,
  'state': state,
  'chosen': chosen,
  'top_mhz': top_mhz,
}
