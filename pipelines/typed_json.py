# SPDX-License-Identifier: Apache-2.0
"""Dataclasses to what JSON can hold, and back with every type checked."""

import dataclasses
import types
import typing
from typing import Any


def plain(value: Any) -> Any:
  """As dicts; without what has its default, which older files do not have."""
  if dataclasses.is_dataclass(value):
    return {
      field.name: plain(getattr(value, field.name))
      for field in dataclasses.fields(value)
      if getattr(value, field.name) is not field.default
    }
  if isinstance(value, dict):
    return {name: plain(each) for name, each in value.items()}
  return [plain(v) for v in value] if isinstance(value, tuple) else value


def build(kind: Any, value: Any) -> Any:
  """Turns parsed JSON into `kind`, refusing other types."""
  origin, arguments = typing.get_origin(kind), typing.get_args(kind)
  if isinstance(kind, type) and dataclasses.is_dataclass(kind):
    hints = typing.get_type_hints(kind)
    optional = {f.name for f in dataclasses.fields(kind) if f.default is None}
    if wrong := (set(hints) ^ set(value)) - (optional & set(hints)):
      raise KeyError(f'fields {sorted(wrong)}')
    return kind(**{name: build(hints[name], value[name]) for name in value})
  if origin is tuple:
    return tuple(build(arguments[0], v) for v in value)
  if origin is dict:
    return {k: build(arguments[1], v) for k, v in value.items()}
  if origin is types.UnionType:
    return None if value is None else build(arguments[0], value)
  if type(value) is not kind:
    raise TypeError(f'{value!r} is not of type {kind.__name__}')
  return value
