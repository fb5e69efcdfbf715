# SPDX-License-Identifier: Apache-2.0
"""Values of a `config.json`: of the right type, or refused by name."""

from collections.abc import Mapping
from typing import Any

from zaya_jax.hub.tensors import errors

_WORDS = {
  int: 'a whole number',
  float: 'a number',
  bool: 'true or false',
  str: 'a text',
  list: 'a list',
  dict: 'an object',
}
_LARGEST = 2**31  # Of a whole number.


def read(
  file: str, given: dict[str, Any], kinds: Mapping[str, tuple[type, Any]]
) -> dict[str, Any]:
  """The values of some keys, defaults where the file has none or null.

  Args:
    file: its path, for error messages.
    given: the content of `config.json`.
    kinds: the type and the default of each key.

  Raises:
    FolderError: if a value has another type.
  """
  values = {}
  for key, (kind, default) in kinds.items():
    value = given.get(key)
    if value is None:
      values[key] = default
      continue
    if type(value) not in ((int, float) if kind is float else (kind,)):
      raise errors.FolderError(
        f'{file}: {key} is {value!r}; it must be {_WORDS[kind]}.'
      )
    if kind is int and abs(value) > _LARGEST:
      raise errors.FolderError(f'{file}: {key} is {value}, which is too large.')
    values[key] = float(value) if kind is float else value
  return values


def check_only(file: str, given: dict[str, Any], only: dict[str, Any]) -> None:
  """Refuses settings of which our model knows one value.

  Args:
    file: its path, for error messages.
    given: the content of `config.json`.
    only: that value by key; an absent key, or null, is taken for it.
  """
  for key, value in only.items():
    if given.get(key) not in (None, value):
      raise errors.FolderError(
        f'{file}: {key} is {given[key]!r}; only {value!r} is known.'
      )


def check_unscaled(file: str, what: str, rope: Any) -> None:
  """Refuses rotary embeddings that are stretched (YaRN and the like)."""
  if not isinstance(rope, dict):
    return  # Released files say `"rope_scaling": false`, or null.
  kind = rope.get('rope_type', rope.get('type')) or 'default'
  if kind != 'default':
    raise errors.FolderError(
      f"{file}: rope_type of {what} is {kind!r}; only 'default' is known."
    )
