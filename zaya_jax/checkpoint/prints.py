# SPDX-License-Identifier: Apache-2.0
"""Fingerprints of the arrays of one field of a state, in one short word."""

import hashlib
import json
from collections.abc import Mapping


def short(prints: Mapping[str, str], field: str) -> str:
  """12 digits that name the values of a field, whatever mesh holds them.

  Args:
    prints: fingerprints by path, as a seal holds them.
    field: of the state, for example 'opt_state'.
  """
  own = sorted((k, v) for k, v in prints.items() if k.split('/')[0] == field)
  return hashlib.sha256(json.dumps(own).encode()).hexdigest()[:12]
