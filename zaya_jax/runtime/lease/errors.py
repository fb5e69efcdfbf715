# SPDX-License-Identifier: Apache-2.0
"""What a lease store answers if not what was asked for."""

from zaya_jax.config import exit_codes
from zaya_jax.runtime.lease import tokens


class LeaseError(RuntimeError):
  """A question to a lease store without the wished answer; one sentence.

  Attributes:
    exit_code: of a command that ends with it.
  """

  exit_code: int = exit_codes.STOPPED


class StoreError(LeaseError):
  """The store cannot be asked, or not be used; its answer is not known.

  Attributes:
    exit_code: 75 if it may answer later, 2 if a setting is wrong.
  """

  def __init__(self, message: str, exit_code: int = exit_codes.STOPPED):
    super().__init__(message)
    self.exit_code = exit_code


class HeldError(LeaseError):
  """Somebody else owns the run.

  Attributes:
    holder: who it is; None: not known.
  """

  exit_code = exit_codes.USAGE

  def __init__(self, message: str, holder: tokens.Token | None = None):
    super().__init__(message)
    self.holder = holder


class LostError(LeaseError):
  """The token is not, or not any more, the one of the owner."""
