# SPDX-License-Identifier: Apache-2.0
"""The newest generation of a run, so that ranks of older ones write nothing."""

import contextlib
import json
import pathlib
from typing import Protocol

from zaya_jax.config import exit_codes
from zaya_jax.runtime import durable


class FencedError(RuntimeError):
  """This process belongs to a generation that was given up."""

  exit_code = exit_codes.STOPPED


class Home(Protocol):
  """Where the generations of one run are kept."""

  def began(self) -> list[tuple[int, int | None]]:
    """Each generation, and from which step it began; None: not known."""

  def begin(self, generation: int, start_step: int | None) -> None:
    """Adds one, also after a loss of power."""


class File:
  """RUN_DIR/aegis/generation, a line of JSON for each."""

  def __init__(self, run_dir: str):
    self._path = pathlib.Path(run_dir, 'aegis', 'generation')

  def began(self) -> list[tuple[int, int | None]]:
    """As `Home.began`; lines that nobody could have written are left out."""
    try:
      lines = self._path.read_text(errors='replace').splitlines()
    except FileNotFoundError:
      return []
    return [found for line in lines if (found := _parse(line))]

  def begin(self, generation: int, start_step: int | None) -> None:
    """As `Home.begin`."""
    self._path.parent.mkdir(parents=True, exist_ok=True)
    rows = [*self.began(), (generation, start_step)]
    lines = [json.dumps({'number': n, 'start_step': step}) for n, step in rows]
    durable.replace(self._path, '\n'.join([*lines, '']).encode())


def home(run_dir: str) -> Home:
  """Where the generations of a run are kept."""
  return File(run_dir)


def newest(run_dir: str) -> int:
  """The number of the newest generation; 0: there was none."""
  return max((number for number, _ in began(run_dir)), default=0)


def began(run_dir: str) -> list[tuple[int, int | None]]:
  """The generations of a run, and from which step each began.

  None: it is not known. What an older one saves of later steps is a zombie's.
  """
  return home(run_dir).began()


def raise_to(
  run_dir: str, generation: int, start_step: int | None = None
) -> None:
  """Fences off all older generations, also after a loss of power.

  Args:
    run_dir: the run directory.
    generation: that begins.
    start_step: the newest step that was sealed before; None: not known.
  """
  home(run_dir).begin(generation, start_step)


def check(run_dir: str, generation: int) -> None:
  """Raises FencedError if a newer generation than `generation` has begun."""
  if (now := newest(run_dir)) > generation:
    raise FencedError(
      f'generation {generation} of {run_dir} was given up and generation {now} '
      'goes on in its place; this process saves nothing.'
    )


def _parse(line: str) -> tuple[int, int | None] | None:
  """A generation and its first step; None: the line is of nobody."""
  with contextlib.suppress(ValueError, TypeError, LookupError):
    row = json.loads(line)
    if isinstance(row, int):  # Of older supervisors.
      return row, None
    step = row['start_step']
    return int(row['number']), None if step is None else int(step)
  return None
