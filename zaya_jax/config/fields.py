# SPDX-License-Identifier: Apache-2.0
"""The fields of a configuration: help text, bounds, types, and their checks."""

import dataclasses
import fractions
import functools
import math
import re
import typing
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from zaya_jax.config import exit_codes

_WORDS = {
  bool: 'true or false',
  int: 'a whole number',
  float: 'a finite number',
  str: 'text in UTF-8',
}
_UNITS = {'': 0, 'k': 3, 'M': 6, 'B': 9, 'T': 12}
_COUNT = re.compile(r'(\d+(?:\.\d+)?) ?([kMBT]?)')
_MOST = 10**18  # Tokens; beyond it somebody has mistyped.


class UsageError(ValueError):
  """A command line that cannot be followed; the message is one sentence."""

  exit_code = exit_codes.USAGE


def field(
  default: Any,
  help: str,
  *,
  minimum: float | None = None,
  maximum: float | None = None,
) -> Any:
  """A dataclass field with its help text and its inclusive bounds."""
  bounds = {'minimum': minimum, 'maximum': maximum}
  return dataclasses.field(default=default, metadata={'help': help, **bounds})


class Section:
  """Base of dataclasses of `field`s, which are checked when they are made."""

  _prefix: ClassVar[str]

  def __init_subclass__(cls, *, prefix: str):
    """Takes what stands before the flags of the section, as 'model.'."""
    cls._prefix = prefix

  def __post_init__(self) -> None:
    check(self, self._prefix)


@functools.cache  # Each flag asks.
def sections(cls: type) -> tuple[tuple[str, str, Any], ...]:
  """The sections of a dataclass: field, what is before the flags, dataclass."""
  return tuple(
    (name, getattr(kind, '_prefix', f'{name}.'), kind)
    for name, kind in typing.get_type_hints(cls).items()
    if isinstance(kind, type) and dataclasses.is_dataclass(kind)
  )


def value(config: Any, name: str) -> Any:
  """The value of a flag, by its name without the dashes."""
  section, dot, field = name.rpartition('.')
  for attribute, prefix, _ in sections(config.__class__) if dot else ():
    if prefix == section + dot:
      config = getattr(config, attribute)
  return getattr(config, field)


def changed(config: Any, settings: Mapping[str, Any]) -> Any:
  """The config with other values of flags, by their names without dashes."""
  found: dict[str, Any] = {}
  for name, value in settings.items():
    section, dot, field = name.rpartition('.')
    found.setdefault(section + dot, {})[field] = value
  changes = found.pop('', {})
  for attribute, prefix, _ in sections(config.__class__):
    if prefix in found:
      section = getattr(config, attribute)
      changes[attribute] = dataclasses.replace(section, **found[prefix])
  return dataclasses.replace(config, **changes)


def divisors(n: int) -> list[int]:
  """The positive divisors of `n`, ascending, for error messages."""
  return [d for d in range(1, n + 1) if n % d == 0]


def count(value: Any) -> int | None:
  """Tokens of 8000, '8T', '50B', '1.5M' or '64k'; None: it is none of these."""
  if type(value) is int:
    return value if 0 <= value <= _MOST else None
  match = _COUNT.fullmatch(value) if isinstance(value, str) else None
  if not match:
    return None
  exact = fractions.Fraction(match[1]) * 10 ** _UNITS[match[2]]
  return int(exact) if exact.denominator == 1 and exact <= _MOST else None


def typed_count(text: str) -> int | None:
  """`count` of what was typed, as '500000' or '50B'."""
  return count(int(text) if text.isdecimal() else text)


def check(
  config: Any, section: str, renamed: Mapping[str, str] | None = None
) -> None:
  """Checks types, bounds and enumerations, naming the flag in the error.

  Args:
    config: a dataclass of `field`s; fields that are dataclasses check
      themselves.
    section: what stands before its flags, as 'model.'.
    renamed: former names of choices, with those of today.

  Raises:
    UsageError: for the first value that breaks a rule.
  """
  hints = typing.get_type_hints(type(config))
  for f in dataclasses.fields(config):
    if not f.metadata:  # A section, or no setting.
      continue
    value, name = getattr(config, f.name), f'--{section}{f.name}'
    choices = typing.get_args(hints[f.name])
    if value in (True, False) and str(value).lower() in choices:
      value = str(value).lower()  # Of Python, and of checkpoints before 'auto'.
      object.__setattr__(config, f.name, value)
    if typing.get_origin(hints[f.name]) is Literal:
      if value not in choices:
        now = (renamed or {}).get(str(value))  # A recipe may have a table.
        if now in choices:
          raise UsageError(f'{name}={value} is called {name}={now} now.')
        raise UsageError(f'{name}={value} must be one of {", ".join(choices)}.')
    elif not _is_of(value, hints[f.name]):
      raise UsageError(f'{name}={value!r} must be {_what(hints[f.name])}.')
    low, high = f.metadata['minimum'], f.metadata['maximum']
    if low is not None and not value >= low:
      raise UsageError(f'{name}={value} must be at least {low}.')
    if high is not None and not value <= high:
      raise UsageError(f'{name}={value} must be at most {high}.')


def _is_of(value: Any, kind: Any) -> bool:
  """Whether a value has the type of its field; an int may pass for a float."""
  if typing.get_origin(kind) is tuple:
    item, _ = typing.get_args(kind)
    return isinstance(value, tuple) and all(_is_of(x, item) for x in value)
  if kind is float:
    return type(value) in (int, float) and math.isfinite(value)
  if kind is str:
    return type(value) is str and _is_utf8(value)
  return type(value) is kind


def _is_utf8(value: str) -> bool:
  """False of bytes that the operating system passed on undecoded."""
  try:
    value.encode()
  except UnicodeEncodeError:
    return False
  return True


def _what(kind: Any) -> str:
  """The values of a type, in words."""
  if typing.get_origin(kind) is tuple:
    item, _ = typing.get_args(kind)
    return f'a tuple, each item {_what(item)}'
  return _WORDS[kind]
