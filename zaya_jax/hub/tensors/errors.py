# SPDX-License-Identifier: Apache-2.0
"""The one error of this package and what it means for the exit code."""

from zaya_jax.config import exit_codes


class FolderError(ValueError):
  """A folder that cannot be read; its text is one sentence for the user."""

  exit_code = exit_codes.UNUSABLE
