# SPDX-License-Identifier: Apache-2.0
"""The kinds of arrays, as 'float32[4,256]', and how those of two trees differ.

Without jax, which takes longer to import than a checkpoint to list.
"""

from typing import Any

_SHOWN = 5  # Differences in one error message.


def of(leaf: Any) -> str:
  """The type and shape of one array."""
  return f'{leaf.dtype}[{",".join(map(str, leaf.shape))}]'


def differences(saved: dict[str, str], wanted: dict[str, str]) -> str:
  """What differs between the kinds of two trees by path; empty: nothing."""
  found = [
    f'{name} is {saved.get(name, "absent")} in the checkpoint and '
    f'{wanted.get(name, "absent")} here'
    for name in sorted({**saved, **wanted})
    if saved.get(name) != wanted.get(name)
  ]
  more = [f'{len(found) - _SHOWN} more'] if len(found) > _SHOWN else []
  return '; '.join(found[:_SHOWN] + more)
