# SPDX-License-Identifier: Apache-2.0
"""The one error of this package and what it means for the exit code."""

from typing import Final, Literal

USAGE: Final = 2  # The input or a setting is wrong; the sentence names it.
UNUSABLE: Final = 3  # Prepared data are missing, damaged or cannot be written.
AGAIN: Final = 1  # Something is away for now: may be started again.


class DataError(ValueError):
  """Data that cannot be used; its text is one sentence for the user.

  Attributes:
    exit_code: 2 for wrong input or settings, 3 for unusable prepared data,
      1 where the same command may do later.
  """

  def __init__(self, message: str, exit_code: Literal[1, 2, 3] = USAGE):
    super().__init__(message)
    self.exit_code = exit_code
