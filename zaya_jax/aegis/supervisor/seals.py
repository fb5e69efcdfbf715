# SPDX-License-Identifier: Apache-2.0
"""The checkpoints of a run, as its supervisor sees them: by their seals."""

import os
import time

from zaya_jax.checkpoint import folders


class Seals:
  """Looks at checkpoints, and sets some aside.

  Args:
    run_dir: of the run.
  """

  def __init__(self, run_dir: str):
    self._root = folders.root(run_dir)
    self._names: list[str] = []
    self._steps: tuple[int, ...] = ()

  def steps(self) -> tuple[int, ...]:
    """All sealed steps; seals are read when names have changed."""
    if (names := folders.numbered(self._root)) != self._names:
      self._names, self._steps = names, tuple(folders.steps(self._root))
    return self._steps

  def newest(self) -> int | None:
    """The newest of them."""
    return max(self.steps(), default=None)

  def roll_back(self, step: int) -> None:
    """Renames all checkpoints after `step`, so that none is gone on from."""
    for name in folders.numbered(self._root):
      if int(name) > step:
        aside = f'{name}-rolled-back-{time.time_ns()}'
        os.makedirs(os.path.join(self._root, 'bad'), exist_ok=True)
        os.rename(
          os.path.join(self._root, name), os.path.join(self._root, 'bad', aside)
        )
