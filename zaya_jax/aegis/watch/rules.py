# SPDX-License-Identifier: Apache-2.0
r"""Rules, which are TOML files: what lines and counters mean.

    [[rule]]
    name = 'nic_down'        # Becomes the kind of the event.
    source = 'kern'          # kern, journal, trainer or metrics.
    pattern = '(?P<who>\w+).*Link down'  # `who` tells one card from another.
    severity = 'critical'    # info, warn, drain_later or critical.
    scope = 'node'           # rank, node or job.
    grace_s = 30             # Nothing happens if, within this time,
    clear = '(?P<who>\w+).*Link up'     # the same card says this.

`unless` is a pattern that excludes a line. `count` and `within_s` ask for so
many lines (or a counter that rises by so much). The same event is not reported
again for `debounce_s`. `action` overrides that of the severity. Each file is
tested when it is read: all `examples` must match, and no line of `all_clear`.
Nor may a rule that acts match what machines say that are well, what other rules
are clear about, or most of the examples of other rules.
"""

import dataclasses
import difflib
import pathlib
import re
import tomllib
import typing
from typing import Any, Literal

from zaya_jax.aegis.decide import events
from zaya_jax.config import fields

SHIPPED = pathlib.Path(__file__).parent / 'rules'

_ACTIONS = {
  'info': 'ignore',
  'warn': 'warn',
  'drain_later': 'checkpoint_and_drain',
  'critical': 'replace_node',
}
_HARMLESS = ('ignore', 'warn')
_FEW = 4  # Examples of others that any rule may match.
# What kernels say of programs: these choose their names, and those of files.
_OF_PROGRAMS = re.compile(
  r'(traps: )?.{1,64}?\[\d+\]:? '
  r'(segfault at|trap |general protection|bad frame)'
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
  """One rule, as the text above says."""

  name: str
  source: Literal['kern', 'journal', 'trainer', 'metrics']
  pattern: re.Pattern[str]
  severity: Literal['info', 'warn', 'drain_later', 'critical']
  scope: Literal['rank', 'node', 'job']
  action: events.ActionKind = 'warn'
  unless: re.Pattern[str] | None = None
  clear: re.Pattern[str] | None = None
  count: int = 1
  within_s: float = 0.0
  debounce_s: float = 60.0
  grace_s: float = 0.0
  examples: tuple[str, ...] = ()
  all_clear: tuple[str, ...] = ()

  def find(self, text: str) -> re.Match[str] | None:
    """The match of a line, unless the line is excluded."""
    if self.source == 'kern' and _OF_PROGRAMS.match(text):
      return None
    if self.unless and self.unless.search(text):
      return None
    return self.pattern.search(text)


def load(paths: typing.Iterable[str | pathlib.Path] = ()) -> tuple[Rule, ...]:
  """Reads rule files.

  Args:
    paths: files, or folders of .toml files; none: the shipped ones.

  Raises:
    UsageError: naming file and line, if any rule of any file is wrong.
  """
  found: dict[str, Rule] = {}
  places: dict[str, tuple[pathlib.Path, int]] = {}
  for path in map(pathlib.Path, paths or (SHIPPED,)):
    for file in sorted(path.glob('*.toml')) if path.is_dir() else (path,):
      for rule, line in _read(file):
        if rule.name in found:
          _refuse(file, line, f'the name {rule.name!r} is taken')
        found[rule.name], places[rule.name] = rule, (file, line)
  if not found:
    raise fields.UsageError(f'{list(map(str, paths))} have no rules.')
  known = {**({r.name: r for r in load()} if paths else {}), **found}
  for name, rule in found.items():
    if rule.action not in _HARMLESS and (why := _breadth(rule, known)):
      _refuse(*places[name], f'the rule {name!r} {why}')
  return tuple(found.values())


def ordinary() -> dict[str, list[str]]:
  """What machines say that are well, by source."""
  path = pathlib.Path(__file__).parent / 'ordinary.toml'
  return tomllib.loads(path.read_text(encoding='utf-8'))


def _breadth(rule: Rule, known: dict[str, Rule]) -> str:
  """Why a rule would act on nodes that are well, or on all; '' if not."""
  others = [
    r for r in known.values() if r.source == rule.source and r.name != rule.name
  ]
  examples = {line for r in others for line in r.examples} - {*rule.examples}
  quiet = {line for r in others for line in r.all_clear}
  quiet.update(ordinary().get(rule.source, ()))
  for line in sorted(quiet - examples - {*rule.examples}):
    if rule.find(line):
      return (
        f'acts on {line!r}, which means no harm; narrow its pattern, or, if '
        'the line does mean harm, make it one of its examples'
      )
  met = sum(1 for line in examples if rule.find(line))
  if met > max(_FEW, len(examples) / 2):
    return (
      f'matches {met} of the {len(examples)} examples of other rules, so it '
      'would act on almost everything; narrow its pattern'
    )
  return ''


def _read(path: pathlib.Path) -> list[tuple[Rule, int]]:
  """The rules of a file, each with its line."""
  try:
    text = path.read_text(encoding='utf-8')
    tables = tomllib.loads(text)
  except OSError as error:
    raise fields.UsageError(
      f'the rules {path} cannot be read: {error.strerror}.'
    ) from error
  except UnicodeDecodeError as error:
    line = error.object[: error.start].count(b'\n') + 1
    _refuse(path, line, 'it is not UTF-8')
  except tomllib.TOMLDecodeError as error:
    found = re.search(r'line (\d+)', str(error))
    _refuse(path, found[1] if found else 'the last', f'no TOML: {error}')
  for key in tables:
    if key != 'rule' or not isinstance(tables[key], list):
      why = f'{key!r} is unknown; rules are [[rule]]'
      _refuse(path, _line(text, -1, key), why)
  return [
    _check(path, text, number, table)
    for number, table in enumerate(tables.get('rule', ()))
  ]


def _line(text: str, table: int, key: str) -> int:
  """The line of a key, else of its table; table -1 is the top of the file.

  tomllib does not tell it.
  """
  lines = text.splitlines()
  starts = [
    number
    for number, line in enumerate(lines, start=1)
    if re.match(r'\s*\[\[\s*rule\s*\]\]', line)
  ]
  first = starts[table] if table >= 0 else 1
  last = [*starts, len(lines) + 1][table + 1]
  for number in range(first, last):
    if re.match(rf'\W*{re.escape(key)}\b', lines[number - 1]):
      return number
  return first


def _check(
  path: pathlib.Path, text: str, number: int, table: dict[str, Any]
) -> tuple[Rule, int]:
  known = {field.name: field for field in dataclasses.fields(Rule)}
  hints = typing.get_type_hints(Rule)

  def refuse(key: str, why: str) -> typing.NoReturn:
    _refuse(path, _line(text, number, key), why)

  for key, value in table.items():
    if key not in known:
      near = difflib.get_close_matches(key, known, 1)
      refuse(key, f'{key!r} is unknown' + (f'; {near[0]!r}?' if near else ''))
    if why := _fault(value, hints[key]):
      refuse(key, f'{key} = {value!r} {why}')
  for key, field in known.items():
    if field.default is dataclasses.MISSING and key not in table:
      refuse('name', f'{key!r} is missing')
  for key in {'pattern', 'unless', 'clear'} & table.keys():
    try:
      table[key] = re.compile(table[key])
    except re.error as error:
      refuse(key, f'{key} is no regular expression: {error}')
  for key in {'examples', 'all_clear'} & table.keys():
    table[key] = tuple(table[key])
  rule = Rule(**{'action': _ACTIONS[table['severity']]} | table)
  for key, wanted in (('examples', True), ('all_clear', False)):
    for line in getattr(rule, key):
      if bool(rule.find(line)) != wanted:
        refuse(key, f'the rule {"misses" if wanted else "matches"} {line!r}')
  key, why = _contradiction(rule)
  if key:
    refuse(key, f'{key} = {table.get(key)!r}: {why}')
  return rule, _line(text, number, 'name')


def _contradiction(rule: Rule) -> tuple[str, str]:
  """A key that contradicts others, and why; '' for both if none does."""
  if rule.name in set(events.KINDS) - set(events.OF_LINES):
    return 'name', 'no line can mean this'
  if rule.source == 'trainer' and rule.action not in _HARMLESS:
    never = 'what a trainer prints never acts on a node or on the run'
    return 'source', f'{never}; choose another severity or action'
  if rule.action == 'wait':
    return 'action', 'no line can tell for what to wait'
  if rule.action == 'replace_node' and rule.scope == 'job':
    return 'scope', 'only a rule about a node can replace one'
  if bool(rule.grace_s) != bool(rule.clear):
    return 'grace_s', 'grace_s and clear go together'
  if (rule.count > 1) != (rule.within_s > 0):
    return 'within_s', 'count and within_s go together'
  return '', ''


def _fault(value: Any, hint: Any) -> str:
  """Why a value is not of a type; '' if it is."""
  if typing.get_origin(hint) is Literal:
    options = typing.get_args(hint)
    return '' if value in options else f'must be one of {", ".join(options)}'
  if hint in (int, float):
    least = 1 if hint is int else 0
    fits = type(value) in (int, hint) and least <= value < 1e9
    return '' if fits else f'must be a number, at least {least}'
  if typing.get_origin(hint) is tuple:
    texts = isinstance(value, list) and all(isinstance(x, str) for x in value)
    return '' if texts else 'must be a list of texts'
  return '' if isinstance(value, str) and value else 'must be a text'


def _refuse(path: pathlib.Path, line: Any, why: str) -> typing.NoReturn:
  raise fields.UsageError(f'{path}, line {line}: {why}.')
