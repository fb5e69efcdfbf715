# SPDX-License-Identifier: Apache-2.0
"""A counter is a name with labels, as Prometheus writes it, and a number."""

import json
from typing import Any

Counters = dict[str, float]


def name(counter: str, **labels: Any) -> str:
  """A name with its labels, in the order that they are given."""
  quoted = ','.join(
    f'{key}={json.dumps(str(value))}' for key, value in labels.items()
  )
  return f'{counter}{{{quoted}}}'


def number(value: Any) -> float | None:
  """A count; None for what tools write where they have none, as 'N/A'.

  amd-smi writes {"value": 3, "unit": "…"} where there is a unit.
  """
  if isinstance(value, dict):
    value = value.get('value')
  if isinstance(value, str):
    try:
      value = int(value, 0)
    except ValueError:
      return None
  is_count = isinstance(value, int | float) and not isinstance(value, bool)
  return float(value) if is_count and 0 <= value < 2**64 else None


def take(
  found: Counters, source: Any, wanted: dict[str, str], **labels: Any
) -> None:
  """Adds the counts of a table.

  Args:
    found: is added to.
    source: what a tool calls each count, and the count; other than a dict has
      none.
    wanted: the tool's name of each that matters, and ours. Several of the
      tool's may be one of ours: they are added up.
    **labels: of ours.
  """
  if not isinstance(source, dict):
    return
  for theirs, ours in wanted.items():
    count = number(source.get(theirs))
    if count is not None:
      key = name(ours, **labels)
      found[key] = found.get(key, 0.0) + count


def entries(text: str) -> list[dict[str, Any]]:
  """The objects of a JSON text: a list, or the first list of an object.

  Raises:
    ValueError: if it is no JSON, or has no list.
  """
  try:
    data = json.loads(text)
  except (ValueError, RecursionError) as error:
    raise ValueError('it is no JSON') from error
  if isinstance(data, dict):
    data = next((x for x in data.values() if isinstance(x, list)), None)
  if not isinstance(data, list):
    raise ValueError('it has no list')
  return [entry for entry in data if isinstance(entry, dict)]
