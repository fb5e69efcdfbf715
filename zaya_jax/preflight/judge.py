# SPDX-License-Identifier: Apache-2.0
"""What a rule says of a node: fit, a fault, a warning, or not checked.

Not checked is whatever nobody could see: a program or a file that is missing,
or a value that it does not say. Never is that taken for fit.
"""

import collections
import dataclasses
import os
import shlex
from collections.abc import Callable, Mapping

from zaya_jax.preflight import errors
from zaya_jax.preflight import node as node_lib
from zaya_jax.preflight import rules as rules_lib
from zaya_jax.preflight import values as values_lib

Rule = rules_lib.Rule
Values = values_lib.Values
_NAMED = 4  # Places that a sentence names.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
  """What was found by one rule.

  Attributes:
    name: of the rule.
    outcome: 'fit', 'fault', 'warning' or 'not checked'.
    found: in words: the values, or why there are none.
    wanted: in words.
    advice: what to do; '' if it is fit.
  """

  name: str
  outcome: str
  found: str
  wanted: str
  advice: str = ''


class Judge:
  """Rules applied to a node.

  Args:
    node: that is asked.
    said: numbers of --preflight.devices and its like, 0 where nothing is said.
    run_dir: of --run_dir.
  """

  def __init__(
    self, node: node_lib.Node, said: Mapping[str, int], run_dir: str = ''
  ):
    self._node, self._said = node, said
    self._run_dir = _there(run_dir)
    self._tags = node.tags()

  def applies(self, rule: Rule) -> bool:
    """Whether a rule is for this node."""
    return rule.on in self._tags and not self._said.get(rule.unless)

  def words(self, rule: Rule) -> list[str]:
    """Program and words of a rule; [] where there are none."""
    if '{run_dir}' in rule.command and not self._run_dir:
      return []
    return [
      word.replace('{run_dir}', self._run_dir)
      for word in shlex.split(rule.command)
    ]

  def check(self, rule: Rule) -> Check:
    """Applies one rule."""
    limit = rule.limit
    words = dict(name=rule.name, wanted=_wanted(rule, limit))
    if isinstance(limit, str):
      limit = float(self._said[limit])
      words['wanted'] = _wanted(rule, limit)
    try:
      found, kinds = self._read(rule)
    except errors.SickError as error:
      return _bad(rule, str(error), **words)
    except errors.UnseenError as error:
      return Check(outcome='not checked', found=str(error), **words)
    except ValueError as error:
      why = f'{rule.source.split()[0]} has another form: {error}'
      return Check(outcome='not checked', found=why, **words)
    if isinstance(rule.limit, str) and not limit:
      words['wanted'] = ''
      why = f'--preflight.{rule.limit} does not say how many'
      return Check(outcome='not checked', found=why, **words)
    known = {
      place: value / rule.scale if isinstance(value, float) else value
      for place, value in found.items()
      if value is not None
    }
    if rule.judge in _COUNTS:
      return self._count(rule, known, limit, words)
    unsaid = [place for place, value in found.items() if value is None]
    wrong = _JUDGES[rule.judge](known, limit, kinds)
    if wrong:
      return _bad(rule, _listed(wrong, rule.unit), **words)
    if unsaid or not known:
      what = f'of {", ".join(unsaid[:_NAMED])}' if known else 'it'
      why = f'{rule.source.split()[0]} does not say {what}'
      return Check(outcome='not checked', found=why, **words)
    return Check(outcome='fit', found=_summary(known, rule.unit), **words)

  def _count(self, rule, known, limit, words) -> Check:
    counted = [p for p, v in known.items() if rule.value in ('', v)]
    others = {p: v for p, v in known.items() if p not in counted}
    what = f'{len(counted)}'
    if _COUNTS[rule.judge](len(counted), limit):
      return Check(outcome='fit', found=what, **words)
    if others:
      what += f' ({_listed(others, "")})'
    elif counted:
      what += f' ({", ".join(counted)})'
    return _bad(rule, what, **words)

  def _read(self, rule: Rule) -> tuple[Values, dict[str, str]]:
    """The values of a rule by place, and of each place its kind."""
    if rule.fact:
      return self._node.fact(rule.fact), {}
    if rule.command:
      return self._of_command(rule), {}
    texts = self._node.files(rule.files)
    if not texts and rule.judge not in _COUNTS:
      raise errors.UnseenError(f'there is no {rule.files}')
    parse, found, kinds = values_lib.OF_EACH[rule.parser], {}, {}
    for path, text in texts.items():
      place = _place(rule.files, path)
      beside = lambda name, path=path: next(
        iter(self._node.files(f'{os.path.dirname(path)}/{name}').values()), ''
      )
      found[place] = parse(text)
      if rule.of:
        whole = parse(beside(rule.of))
        found[place] = values_lib.share(found[place], whole)
      if rule.kind:
        kinds[place] = beside(rule.kind).strip()
    return found, kinds

  def _of_command(self, rule: Rule) -> Values:
    words = self.words(rule)
    if not words:
      raise errors.UnseenError('--run_dir= names no folder')
    text = self._node.command(words)
    if rule.parser in values_lib.OF_TEXT:
      fields = (rule.field,) if rule.field else ()
      return values_lib.OF_TEXT[rule.parser](text, *fields)
    return {'': values_lib.OF_EACH[rule.parser](text)}


def _bad(rule: Rule, found: str, **words: str) -> Check:
  return Check(outcome=rule.weight, found=found, advice=rule.advice, **words)


def _there(path: str) -> str:
  """The nearest folder that is there; '' of ''."""
  if not path:
    return ''
  path = os.path.abspath(path)
  while not os.path.lexists(path):
    path = os.path.dirname(path)
  return path


def _place(pattern: str, path: str) -> str:
  """The parts of a path for which there are stars: 'mlx5_0 1'."""
  pairs = zip(pattern.split('/'), path.split('/'), strict=True)
  return ' '.join(part for star, part in pairs if '*' in star)


def _alike(values: Values, limit, kinds: Mapping[str, str]) -> Values:
  """Those that are not as most of their kind; all, where there is no most."""
  del limit
  groups: dict[str, Values] = {}
  for place, value in values.items():
    groups.setdefault(kinds.get(place, ''), {})[place] = value
  wrong: Values = {}
  for group in groups.values():
    ranked = collections.Counter(group.values()).most_common(2)
    if len(ranked) == 2:
      usual, many = ranked[0]
      tie = many == ranked[1][1]
      wrong |= {p: v for p, v in group.items() if tie or v != usual}
  return wrong


_JUDGES: Mapping[str, Callable[..., Values]] = {
  'at_most': lambda values, limit, _: {
    p: v for p, v in values.items() if not _is_number(v) or v > limit
  },
  'at_least': lambda values, limit, _: {
    p: v for p, v in values.items() if not _is_number(v) or v < limit
  },
  'among': lambda values, limit, _: {
    p: v for p, v in values.items() if _words(v) not in limit
  },
  'alike': _alike,
}
_COUNTS: Mapping[str, Callable[[int, float], bool]] = {
  'count_is': lambda count, limit: count == limit,
  'count_at_least': lambda count, limit: count >= limit,
}
_WANTED = {
  'at_most': 'at most {limit}',
  'at_least': 'at least {limit}',
  'among': '{limit}',
  'alike': 'all alike',
  'count_is': '{limit}',
  'count_at_least': 'at least {limit}',
}


def _is_number(value: values_lib.Value) -> bool:
  return isinstance(value, float)


def _wanted(rule: Rule, limit: float | str | tuple[str, ...]) -> str:
  if isinstance(limit, tuple):
    said = ' or '.join(limit)
  else:
    said = limit if isinstance(limit, str) else f'{limit:g}'
  text = _WANTED[rule.judge].format(limit=said)
  return text if rule.judge == 'alike' else f'{text} {rule.unit}'.strip()


def _words(value: values_lib.Value) -> str:
  return f'{value:.6g}' if isinstance(value, float) else str(value)


def _listed(values: Values, unit: str) -> str:
  """The first places and their values, and how many more."""
  said = [f'{p}: {_words(v)}'.removeprefix(': ') for p, v in values.items()]
  more = f' and {len(said) - _NAMED} more' if len(said) > _NAMED else ''
  return f'{", ".join(said[:_NAMED])} {unit}'.strip() + more


def _summary(values: Values, unit: str) -> str:
  """The value of all, or their ends."""
  if len(set(values.values())) == 1:
    return f'{_words(next(iter(values.values())))} {unit}'.strip()
  if all(_is_number(v) for v in values.values()):
    numbers = [v for v in values.values() if isinstance(v, float)]
    return f'{min(numbers):.6g} to {max(numbers):.6g} {unit}'.strip()
  return f'{len(values)} values, all right'
