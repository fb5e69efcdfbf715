# SPDX-License-Identifier: Apache-2.0
"""Dataclasses to what JSON can hold, and back with every type checked."""

import dataclasses
import functools
import types
import typing
from typing import Any


def plain(value: Any) -> Any:
  """As dicts; without what has its default, which older files do not have."""
  if dataclasses.is_dataclass(value):
    return {
      field.name: plain(getattr(value, field.name))
      for field in dataclasses.fields(value)
      if getattr(value, field.name) != field.default
    }
  if isinstance(value, dict):
    return {name: plain(each) for name, each in value.items()}
  return [plain(v) for v in value] if isinstance(value, tuple) else value


def build(kind: Any, value: Any) -> Any:
  """Turns parsed JSON into `kind`, refusing other types."""
  if type(value) is kind:  # Nearly always.
    return value
  origin, arguments = typing.get_origin(kind), typing.get_args(kind)
  if isinstance(kind, type) and dataclasses.is_dataclass(kind):
    hints, optional = _fields(kind)
    if wrong := (set(hints) ^ set(value)) - optional:
      raise KeyError(f'fields {sorted(wrong)}')
    return kind(**{name: build(hints[name], value[name]) for name in value})
  if origin is tuple:
    kinds = arguments
    if arguments[-1] is Ellipsis:
      kinds = arguments[:1] * len(value)
    return tuple(build(k, v) for k, v in zip(kinds, value, strict=True))
  if origin is dict:
    return {k: build(arguments[1], v) for k, v in value.items()}
  if origin in (types.UnionType, typing.Union):  # With None.
    return None if value is None else build(arguments[0], value)
  if origin is typing.Literal and value in arguments:
    return value
  name = getattr(kind, '__name__', kind)
  raise TypeError(f'{value!r} is not of type {name}')


@functools.cache
def _fields(kind: Any) -> tuple[dict[str, Any], set[str]]:
  """Types of a dataclass by name, and the names that have a default."""
  missing = dataclasses.MISSING
  optional = {
    f.name for f in dataclasses.fields(kind) if f.default is not missing
  }
  return typing.get_type_hints(kind), optional
