# SPDX-License-Identifier: Apache-2.0
"""The newest generation of a run, so that ranks of older ones write nothing."""

import pathlib

from zaya_jax.config import exit_codes
from zaya_jax.runtime import durable


class FencedError(RuntimeError):
  """This process belongs to a generation that was given up."""

  exit_code = exit_codes.STOPPED


def newest(run_dir: str) -> int:
  """The number of the newest generation; 0: there was none."""
  try:
    return int(_path(run_dir).read_text())
  except FileNotFoundError:
    return 0


def raise_to(run_dir: str, generation: int) -> None:
  """Fences off all older generations, also after a loss of power."""
  path = _path(run_dir)
  path.parent.mkdir(parents=True, exist_ok=True)
  durable.replace(path, str(generation).encode())


def check(run_dir: str, generation: int) -> None:
  """Raises FencedError if a newer generation than `generation` has begun."""
  if (now := newest(run_dir)) > generation:
    raise FencedError(
      f'generation {generation} of {run_dir} was given up and generation {now} '
      'goes on in its place; this process saves nothing.'
    )


def _path(run_dir: str) -> pathlib.Path:
  return pathlib.Path(run_dir, 'aegis', 'generation')
