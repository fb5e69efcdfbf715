# SPDX-License-Identifier: Apache-2.0
"""A recipe: what a run trains on, phase by phase, read from a TOML file."""

import dataclasses
import decimal
import os
import tomllib
from typing import Any

from zaya_jax.config import fields
from zaya_jax.config.recipe import phase as phase_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
  """A folder of prepared shards; made from `input` if it does not exist.

  Attributes:
    name: in the mixtures of phases.
    dir: the folder; '': RUN_DIR/data/NAME.
    input: as --data.input; '': the folder must be there.
  """

  name: str
  dir: str = ''
  input: str = ''

  def folder(self, run_dir: str) -> str:
    """Where the shards are, for a run."""
    return self.dir or os.path.join(run_dir, 'data', self.name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
  """A file, its sources in their order, and its phases."""

  path: str
  text: str
  sources: tuple[Source, ...]
  phases: tuple[phase_lib.Phase, ...]


def load(path: str) -> Recipe:
  """Reads a recipe and checks all that needs no data.

  Raises:
    UsageError: naming the file, the phase and the key.
  """
  text, found = _read(path)
  phase_lib.known(path, '', found, ('sources', 'phase'), '')
  sources = _sources(path, found.get('sources'))
  phases, rate = [], 0.0
  rows = found.get('phase')
  if not _are_tables(rows):
    raise phase_lib.error(
      path, '', '[[phase]]', ' is missing; write one for each phase.'
    )
  names = [source.name for source in sources]
  for number, row in enumerate(rows, 1):
    phase = phase_lib.read(path, number, row, names, rate if phases else None)
    if phase.name in [other.name for other in phases]:
      raise phase_lib.error(
        path, phase.name, 'name', ' is that of another phase too; rename one.'
      )
    phases.append(phase)
    rate = phase.rate.end
  return Recipe(
    path=path, text=text, sources=tuple(sources), phases=tuple(phases)
  )


def _read(path: str) -> tuple[str, dict[str, Any]]:
  try:
    with open(os.path.expanduser(path), encoding='utf-8') as file:
      text = file.read()
    return text, tomllib.loads(text, parse_float=decimal.Decimal)
  except OSError as problem:
    why = f' cannot be read: {problem.strerror}.'
    raise fields.UsageError(f'--recipe={path}{why}') from problem
  except (UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
    why = f' is no TOML in UTF-8: {problem}.'
    raise fields.UsageError(f'--recipe={path}{why}') from problem


def _are_tables(rows: Any) -> bool:
  there = isinstance(rows, list) and bool(rows)
  return there and all(isinstance(row, dict) for row in rows)


def _sources(path: str, table: Any) -> list[Source]:
  if not isinstance(table, dict) or not table:
    raise phase_lib.error(
      path, '', '[sources]',
      ' is missing; name folders of prepared shards, as web = "data/web".',
    )  # fmt: skip
  found = []
  for name, value in table.items():
    value = {'dir': value} if isinstance(value, str) else value
    key = f'sources.{name}'
    if not isinstance(value, dict):
      value = {}
    phase_lib.known(path, '', value, ('dir', 'input'), f'{key}.')
    if not value or not all(isinstance(v, str) and v for v in value.values()):
      raise phase_lib.error(
        path, '', key,
        ' must be a folder, or {input = "TEXT", dir = "FOLDER"}.',
      )  # fmt: skip
    found.append(Source(name=name, **value))
  return found
