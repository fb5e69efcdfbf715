# SPDX-License-Identifier: Apache-2.0
"""Dataclass fields to absl flags, and back.

A field `d_model` of the section `model` is `--model.d_model`; a field of the
outer dataclass itself is bare. absl parses the types and finds the flags; rules
are those of the dataclasses, so they hold in Python too. absl's global flags
are not touched: a notebook and a test may parse at will.
"""

import dataclasses
import json
import os
import re
import typing
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, Literal, TypeVar

from absl import flags as absl_flags

from zaya_jax.config import fields, presets

_LINE = re.compile(r'--?[A-Za-z][\w.]*(=.*)?')
_BOOLEANS = {'true': True, '1': True, 'false': False, '0': False}
_FLAGFILE = ('--flagfile', '-flagfile')
# Lines of a flagfile that set nothing: comments, and flags that are gone, which
# config.flags of an old run still has.
_LEFT_OUT = ('#', '//', '--ops.muon_apply=')
_C = TypeVar('_C')
Settle = Callable[[absl_flags.FlagValues, set[str]], None]
_HEADER = '# Every setting of one run; --flagfile=THIS_FILE repeats it.\n\n'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
  """One flag: a field of one of the dataclasses."""

  name: str  # Without the dashes: 'model.d_model'.
  kind: Any  # int, float, bool, str, a Literal, tuple[int | str, ...].
  field: dataclasses.Field


def sections(cls: type) -> Iterator[tuple[str, str, list[Setting]]]:
  """Yields (title, what it is about, its settings), the run itself first."""
  yield 'run', _summary(cls), _settings(cls, '')
  for _, prefix, kind in fields.sections(cls):
    yield prefix.rstrip('.'), _summary(kind), _settings(kind, prefix)


def parse(
  cls: type[_C], args: Sequence[str], settle: Settle = lambda *_: None
) -> _C:
  """Reads a command line into a dataclass.

  Args:
    cls: of the settings.
    args: words of the command line.
    settle: changes the values that were read; it also gets the names of those
      that stand on the command line itself, in no flagfile.

  Raises:
    UsageError: in one sentence.
  """
  values = absl_flags.FlagValues()
  for _, _, settings in sections(cls):
    for setting in settings:
      _define(setting, values)
  try:
    left = values(['zaya_jax', *_expand(args)])[1:]
  except absl_flags.UnrecognizedFlagError as error:
    raise fields.UsageError(_unknown(error.flagname, values)) from error
  except (absl_flags.Error, ValueError) as error:
    text = str(error).removeprefix('flag ')
    raise fields.UsageError(f'{text.rstrip(".")}.') from error
  if left:
    raise fields.UsageError(f'{left[0]!r} is not a flag; write --name=value.')
  words = {arg.lstrip('-').partition('=')[0] for arg in args if arg[:1] == '-'}
  settle(values, words)
  given = frozenset(name for name in values if values[name].present)
  return _build(cls, '', values, given=given)


def to_flagfile(config: Any, left_out: Container[str] = ()) -> str:
  """Writes every setting as a line that `parse` reads again.

  Args:
    config: the settings.
    left_out: names of flags that are not written.
  """
  lines = [_HEADER]
  for title, summary, settings in sections(type(config)):
    lines.append(f'# {title}: {summary}\n')
    lines += [
      f'--{setting.name}={_quote(_text(setting, config))}\n'
      for setting in settings
      if setting.name not in left_out
    ]
    lines.append('\n')
  return ''.join(lines[:-1])


def differences(before: _C, after: _C, section: str) -> list[str]:
  """Lists the flags of a section (empty: of all) that differ."""
  found = []
  for title, _, settings in sections(type(before)):
    for setting in settings if section in ('', title) else []:
      old, new = _text(setting, before), _text(setting, after)
      if old != new:
        found.append(
          f'--{setting.name}: {old or "(empty)"} -> {new or "(empty)"}'
        )
  return found


def _summary(cls: type) -> str:
  return (cls.__doc__ or '').partition('\n')[0].rstrip('.') + '.'


def _settings(cls: Any, prefix: str) -> list[Setting]:
  hints = typing.get_type_hints(cls)
  return [
    Setting(name=prefix + f.name, kind=hints[f.name], field=f)
    for f in dataclasses.fields(cls)
    if f.metadata
  ]


class _Parser(absl_flags.ArgumentParser):
  """Parses the text of a flag and says what it must be."""

  def __init__(self, convert: Callable[[str], Any], what: str):
    self._convert, self._what = convert, what

  def parse(self, argument: Any) -> Any:
    """Converts the text of a flag; a default comes as the value it is."""
    if not isinstance(argument, str):
      return argument
    try:
      return self._convert(argument)
    except (KeyError, ValueError) as error:
      raise ValueError(f'must be {self._what}') from error

  def flag_type(self) -> str:
    """What absl calls the type."""
    return self._what


def _define(setting: Setting, values: absl_flags.FlagValues) -> None:
  flag = absl_flags.Flag(
    parser=_parser(setting.kind),
    serializer=None,
    name=setting.name,
    default=setting.field.default,
    help_string=setting.field.metadata['help'],
    boolean=_is_switch(setting.kind),
  )
  absl_flags.DEFINE_flag(flag, values, module_name=__name__)


def _is_switch(kind: Any) -> bool:
  """Whether --name and --noname stand for --name=true and --name=false."""
  return kind is bool or {'true', 'false'} <= {*typing.get_args(kind)}


def _parser(kind: Any) -> _Parser:
  """The parser for the type of a field."""
  if typing.get_origin(kind) is Literal:
    return _Parser(str, 'a choice')  # `fields.check` knows which there are.
  if typing.get_origin(kind) is tuple:
    item, _ = typing.get_args(kind)
    what = f'{"whole numbers" if item is int else "words"} with commas between'
    return _Parser(lambda s: tuple(item(x) for x in s.split(',') if x), what)
  return {
    bool: _Parser(lambda s: _BOOLEANS[s.lower()], 'true or false'),
    int: _Parser(int, 'a whole number'),
    float: _Parser(float, 'a number'),
    str: _Parser(str, 'text'),
  }[kind]


def _build(
  cls: type, prefix: str, values: absl_flags.FlagValues, **more: Any
) -> Any:
  for f in dataclasses.fields(cls):
    if f.metadata:
      more[f.name] = values[prefix + f.name].value
  for name, inner, kind in fields.sections(cls):
    more[name] = _build(kind, inner, values)
  return cls(**more)


def _expand(args: Sequence[str]) -> list[str]:
  """Puts the lines of each flagfile in its place and checks their form."""
  expanded, rest = [], list(args)
  while rest:
    arg = rest.pop(0)
    name, _, path = arg.partition('=')
    if name not in _FLAGFILE:
      expanded.append(presets.in_flag(arg))
      continue
    if '=' not in arg and rest:
      path = rest.pop(0)
    expanded += _lines(path, ())
  return expanded


def _lines(path: str, above: tuple[str, ...]) -> Iterator[str]:
  """Yields what a flagfile sets, those that it includes in their place."""
  if not path:
    raise fields.UsageError('--flagfile= needs the path of a file.')
  try:
    path = presets.find(os.path.expanduser(path))
    with open(path, encoding='utf-8-sig') as file:
      lines = [line.strip() for line in file.read().split('\n')]
  except OSError as error:
    raise fields.UsageError(
      f'--flagfile={path} cannot be read: {error.strerror}.'
    ) from error
  except UnicodeDecodeError as error:
    raise fields.UsageError(
      f'--flagfile={path} is not a text file in UTF-8.'
    ) from error
  above = (*above, os.path.realpath(path))
  for line in lines:
    name, _, included = line.partition('=')
    if not line or line.startswith(_LEFT_OUT):
      continue
    if name not in _FLAGFILE:
      yield presets.in_flag(_line(line, path))
      continue
    if os.path.realpath(included) in above:
      raise fields.UsageError(
        f'--flagfile={path} includes {included}, which includes it; remove one '
        'of the two lines.'
      )
    yield from _lines(included, above)


def _line(line: str, path: str) -> str:
  """Checks one line of a flagfile and removes the quotes of its value."""
  if not _LINE.fullmatch(line):
    raise fields.UsageError(
      f'--flagfile={path}: {line!r} is not a flag; every line is '
      '--name=value, or a comment that starts with #.'
    )
  name, equals, value = line.partition('=')
  if value.startswith('"'):
    try:
      return f'{name}={json.loads(value)}'
    except json.JSONDecodeError as error:
      raise fields.UsageError(
        f'--flagfile={path}: the quoted value in {line!r} is not a JSON string.'
      ) from error
  if re.search(r'\s#', value):
    raise fields.UsageError(
      f'--flagfile={path}: {line!r} has a comment behind the value; give '
      'the comment a line of its own, or put the value in double quotes.'
    )
  return name + equals + value


def _text(setting: Setting, config: Any) -> str:
  """The value of a setting as it stands on the command line."""
  found = fields.value(config, setting.name)
  if setting.kind is bool:
    return str(found).lower()
  if setting.kind is float:
    return repr(float(found))
  if isinstance(found, tuple):
    words = [str(x) for x in found]
    if bad := [x for x in words if not x or ',' in x]:
      raise fields.UsageError(
        f'--{setting.name} cannot hold {bad[0]!r}: commas separate its values.'
      )
    return ','.join(words)
  return str(found)


def _quote(text: str) -> str:
  """Quotes what a line of a flagfile would not keep as it is."""
  plain = text == text.strip() and text.isprintable()
  if plain and not text.startswith('"') and not re.search(r'\s#', text):
    return text
  return json.dumps(text)


def _unknown(name: str, values: absl_flags.FlagValues) -> str:
  """Says which flags an unknown one may have been meant to be."""
  import difflib  # Only on this path: it would slow every other start.

  bare = name.removeprefix('no')
  meant = [n for n in values if n.rpartition('.')[2] in (name, bare)]
  meant = meant or difflib.get_close_matches(name, list(values), n=3)
  tip = f'Did you mean {" or ".join(f"--{n}" for n in meant)}?'
  return f'--{name} is not a flag. {tip if meant else "See --help."}'
