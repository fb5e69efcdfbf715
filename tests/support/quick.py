# SPDX-License-Identifier: Apache-2.0
"""Parameters that `make test` takes; `make test-long` has the rest."""

from collections.abc import Iterable
from typing import Any

import pytest


def only(values: Iterable[Any], *quick: Any) -> list:
  """Parameters of a test; all but `quick` are long."""
  marks = lambda value: [] if value in quick else [pytest.mark.long]
  return [pytest.param(value, marks=marks(value)) for value in values]
