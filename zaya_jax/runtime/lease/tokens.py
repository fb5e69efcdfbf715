# SPDX-License-Identifier: Apache-2.0
"""Tokens of owners."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Token:
  """One ownership of a run.

  Attributes:
    owner: a name that no other process has (`lease.owner_name`).
    epoch: from 1; greater than those of all owners before.
  """

  owner: str
  epoch: int
