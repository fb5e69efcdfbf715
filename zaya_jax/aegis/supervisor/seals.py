# SPDX-License-Identifier: Apache-2.0
"""The checkpoints of a run, which its supervisor knows by their seals."""

import os
import time

from zaya_jax.checkpoint import folders
from zaya_jax.checkpoint.reading import high_water


class Seals:
  """Lists checkpoints, and sets some aside."""

  def __init__(self, run_dir: str):
    self._run_dir, self._root = run_dir, folders.root(run_dir)
    self._names: list[str] = []
    self._steps: tuple[int, ...] = ()

  def steps(self) -> tuple[int, ...]:
    """All sealed steps; reads seals only when names have changed."""
    if (names := folders.numbered(self._root)) != self._names:
      self._names, self._steps = names, tuple(folders.steps(self._root))
    return self._steps

  def newest(self) -> int | None:
    """The newest sealed step."""
    return max(self.steps(), default=None)

  def roll_back(self, step: int) -> None:
    """Renames all checkpoints after `step`, so that none is restored."""
    bad = os.path.join(self._root, 'bad')
    for name in folders.numbered(self._root):
      if int(name) > step:
        os.makedirs(bad, exist_ok=True)
        aside = f'{name}-rolled-back-{time.time_ns()}'
        os.rename(os.path.join(self._root, name), os.path.join(bad, aside))
    high_water.lower(self._run_dir, below=step + 1)
