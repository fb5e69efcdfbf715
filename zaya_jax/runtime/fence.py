# SPDX-License-Identifier: Apache-2.0
"""The newest generation of a run, so that ranks of older ones write nothing."""

import contextlib
import json
import pathlib

from zaya_jax.config import exit_codes
from zaya_jax.runtime import durable


class FencedError(RuntimeError):
  """This process belongs to a generation that was given up."""

  exit_code = exit_codes.STOPPED


def newest(run_dir: str) -> int:
  """The number of the newest generation; 0: there was none."""
  return max((number for number, _ in began(run_dir)), default=0)


def began(run_dir: str) -> list[tuple[int, int | None]]:
  """The generations of a run, and from which step each began.

  None: it is not known. What an older one saves of later steps is a zombie's.
  """
  try:
    lines = _path(run_dir).read_text(errors='replace').splitlines()
  except FileNotFoundError:
    return []
  return [found for line in lines if (found := _parse(line))]


def raise_to(
  run_dir: str, generation: int, start_step: int | None = None
) -> None:
  """Fences off all older generations, also after a loss of power.

  Args:
    run_dir: the run directory.
    generation: that begins.
    start_step: the newest step that was sealed before; None: not known.
  """
  path = _path(run_dir)
  path.parent.mkdir(parents=True, exist_ok=True)
  rows = [*began(run_dir), (generation, start_step)]
  lines = [json.dumps({'number': n, 'start_step': step}) for n, step in rows]
  durable.replace(path, '\n'.join([*lines, '']).encode())


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


def _path(run_dir: str) -> pathlib.Path:
  return pathlib.Path(run_dir, 'aegis', 'generation')
