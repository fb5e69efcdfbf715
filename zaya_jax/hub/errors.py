# SPDX-License-Identifier: Apache-2.0
"""The one error of this package and what it means for the exit code."""


class FolderError(ValueError):
  """A folder that cannot be read; its text is one sentence for the user."""

  exit_code = 3
