# SPDX-License-Identifier: Apache-2.0
"""How warnings read, and where a run keeps them: the supervisor reads them."""

import contextlib
import logging
import os
from typing import Self

from zaya_jax.runtime import durable

FORMAT = 'zaya_jax: %(levelname)s: %(message)s'


class File(logging.Handler):
  """Appends warnings to a file, in a `with` block or from `addHandler` on.

  The file is made when there is one. What does not fit on its disk is lost.
  """

  def __init__(self, path: str):
    super().__init__(logging.WARNING)
    self._path = path
    self.setFormatter(logging.Formatter(FORMAT))

  def __enter__(self) -> Self:
    logger = logging.getLogger()
    self._added: list[logging.Handler] = [self]
    if not logger.handlers and logging.lastResort:
      # From Python, where nobody has set up any: stderr gets them, too.
      self._added.append(logging.lastResort)
    for handler in self._added:
      logger.addHandler(handler)
    return self

  def __exit__(self, *unused) -> None:
    for handler in self._added:
      logging.getLogger().removeHandler(handler)

  def emit(self, record: logging.LogRecord) -> None:
    """Appends one; pages of it, where it has a traceback."""
    with contextlib.suppress(OSError):
      os.makedirs(os.path.dirname(self._path), exist_ok=True)
      lines = durable.Lines(self._path)
      with contextlib.closing(lines):
        lines.write(f'{self.format(record)}\n'.encode('utf-8', 'replace'))
