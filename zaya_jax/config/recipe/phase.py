# SPDX-License-Identifier: Apache-2.0
"""A phase of a recipe: its budget, mixture, batch sizes and learning rate.

Numbers of tokens are those of the data, from the beginning of the phase, so
they mean the same at every batch size.
"""

import dataclasses
import decimal
import fractions
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from zaya_jax.config import fields, training

SHAPES = ('cosine', 'linear', 'constant')
# Flags that may differ from phase to phase: sections with a dot, or one flag.
FLAGS = (
  'data.seq_len', 'data.batch_size', 'model.rope_theta', 'mesh.',
  'optim.accumulation', 'optim.balance_lr', 'eval.',
)  # fmt: skip
_PHASE = (
  'name', 'tokens', 'mixture', 'batch', 'lr', 'keep', 'max_epochs', 'flags',
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
  """One phase of a recipe.

  Attributes:
    name: no other phase has it.
    tokens: its budget.
    mixture: shares of sources by name, as they are written.
    batch: (tokens of the phase, batch size from there on); (): one size, that
      of the flags.
    rate: the learning rate; `Rate.warmup_steps` still to be `counted`.
    keep: of the state before: all, or params alone.
    max_epochs: how often a source may have been read by the end of the phase,
      in the whole run; no limit for what is not named.
    flags: that differ from those of the run, by name.
  """

  name: str
  tokens: int
  mixture: Mapping[str, fractions.Fraction]
  batch: tuple[tuple[int, int], ...]
  rate: training.Rate
  keep: Literal['all', 'params']
  max_epochs: Mapping[str, float]
  flags: Mapping[str, Any]


def read(
  path: str,
  number: int,
  row: Mapping[str, Any],
  sources: Sequence[str],
  before: float | None,
) -> Phase:
  """Reads one phase.

  Args:
    path: of the recipe.
    number: of the phase, from 1.
    row: what TOML gave, decimals as `decimal.Decimal`.
    sources: names of all.
    before: the learning rate at the end of the phase before; None: there is
      none.

  Raises:
    UsageError: naming the phase and the key.
  """
  name = row.get('name')
  if not isinstance(name, str) or not name or not name.isprintable():
    raise error(path, str(number), 'name', ' is missing; name the phase.')
  known(path, name, row, _PHASE, '')
  tokens = fields.count(row.get('tokens'))
  if not tokens:
    raise error(
      path, name, f'tokens = {row.get("tokens")!r}',
      ' must be a whole number above 0, or as "50B" (k, M, B, T).',
    )  # fmt: skip
  keep = row.get('keep', 'all')
  if keep not in ('all', 'params'):
    raise error(path, name, f'keep = {keep!r}', ' must be "all" or "params".')
  return Phase(
    name=name,
    tokens=tokens,
    mixture=_shares(path, name, row, 'mixture', sources, fractions.Fraction),
    batch=_batch(path, name, row, tokens),
    rate=_rate(path, name, row, tokens, before),
    keep=keep,
    max_epochs=_shares(path, name, row, 'max_epochs', sources, float),
    flags=_flags(path, name, row),
  )


def error(path: str, phase: str, key: str, why: str) -> fields.UsageError:
  """What is wrong with a key of a phase ('': of the file)."""
  place = f'phase "{phase}", ' if phase else ''
  return fields.UsageError(f'--recipe={path}: {place}{key}{why}')


def known(
  path: str,
  phase: str,
  table: Mapping[str, Any],
  names: Sequence[str],
  prefix: str,
) -> None:
  """Refuses keys that a table does not have."""
  import difflib  # Only where there is a recipe.

  for key in table:
    if key not in names:
      close = difflib.get_close_matches(key, names, n=1)
      tip = f'did you mean {close[0]}?' if close else f'use {", ".join(names)}.'
      raise error(path, phase, f'{prefix}{key}', f' is not known; {tip}')


def _shares(path, phase, row, key, sources, kind) -> dict[str, Any]:
  """Positive numbers by source."""
  table = row.get(key)
  if table is None and key == 'max_epochs':
    return {}
  if table is None and len(sources) == 1:
    return {sources[0]: kind(1)}
  if not isinstance(table, dict) or not table:
    raise error(
      path, phase, key, ' must give shares of sources, as {web = 0.7}.'
    )
  known(path, phase, table, sources, f'{key}.')
  for name, value in table.items():
    # Not a bool, which is an int; not NaN, which is not above 0.
    good = type(value) in (int, decimal.Decimal) and value == value
    if not good or not 0 < value < math.inf:
      raise error(
        path, phase, f'{key}.{name} = {_plain(value)!r}',
        ' must be a number above 0; leave out what is not read.',
      )  # fmt: skip
  return {name: kind(value) for name, value in table.items()}


def _batch(path, phase, row, tokens) -> tuple[tuple[int, int], ...]:
  """The ramp of the batch size."""
  words = row.get('batch', [])
  key, found = f'batch = {words!r}', []
  for word in words if isinstance(words, list) else [words]:
    at, _, size = str(word).rpartition(':')
    place = fields.typed_count(at)
    if place is None or not size.isdecimal() or not int(size):
      raise error(
        path, phase, key,
        ' must be a list of "TOKENS:BATCH_SIZE", as ["0:1024", "50B:2048"].',
      )  # fmt: skip
    found.append((place, int(size)))
  places = [place for place, _ in found]
  if found and (places[0] or sorted(set(places)) != places):
    raise error(path, phase, key, ' must begin at 0 and go up.')
  if found and places[-1] >= tokens:
    raise error(
      path, phase, key,
      f' goes beyond the {tokens:,} tokens of the phase, where the next one '
      'begins; lower it, or raise tokens.',
    )  # fmt: skip
  return tuple(found)


def _rate(path, phase, row, tokens, before) -> training.Rate:
  """The learning rate; it begins where the phase before ended."""
  table = row.get('lr', {})
  if not isinstance(table, dict):
    raise error(path, phase, 'lr', ' must be as {from = 6e-4, to = 2e-4}.')
  names = ('from', 'to', 'shape', 'warmup', 'warmup_steps')
  known(path, phase, table, names, 'lr.')
  for key in ('from', 'to'):
    value = table.get(key, 0)
    good = type(value) in (int, decimal.Decimal) and value == value
    if not good or not 0 <= value < math.inf:
      raise error(
        path, phase, f'lr.{key} = {_plain(value)!r}',
        ' must be a number of at least 0.',
      )  # fmt: skip
  start = table.get('from', before)
  if start is None:
    raise error(
      path, phase, 'lr.from', ' is missing; the first phase needs it.'
    )
  shape = table.get('shape', 'cosine' if 'to' in table else 'constant')
  if shape not in SHAPES:
    raise error(
      path,
      phase,
      f'lr.shape = {shape!r}',
      f' must be one of {", ".join(SHAPES)}.',
    )
  if (shape == 'constant') != ('to' not in table):
    why = ' goes with cosine and linear, and not with constant.'
    raise error(path, phase, 'lr.to', why)
  warmup = fields.count(table.get('warmup', 0))
  if warmup is None or warmup > tokens:
    raise error(
      path, phase, f'lr.warmup = {table["warmup"]!r}',
      f' must be tokens, as "30B", and at most the {tokens:,} of the phase.',
    )  # fmt: skip
  steps = table.get('warmup_steps', 0)
  if type(steps) is not int or steps < 0 or (steps and warmup):
    raise error(
      path, phase, f'lr.warmup_steps = {_plain(steps)!r}',
      ' must be a whole number of steps, in place of lr.warmup.',
    )  # fmt: skip
  return training.Rate(
    before=before or 0.0,
    start=float(start),
    end=float(table.get('to', start)),
    shape=shape,
    warmup=warmup,
    warmup_steps=steps,
    tokens=tokens,
  )


def _flags(path, phase, row) -> dict[str, Any]:
  """Flags by name; the dataclasses check their values."""
  table = row.get('flags', {})
  if not isinstance(table, dict):
    raise error(path, phase, 'flags', ' must be as {"data.seq_len" = 4096}.')
  for key in table:
    if not any(key == f or f[-1] == '.' and key.startswith(f) for f in FLAGS):
      names = ', '.join(f'{f}*' if f[-1] == '.' else f for f in FLAGS)
      raise error(
        path, phase, f'flags."{key}"',
        f' is no flag that may change within a run; these may: {names}.',
      )  # fmt: skip
  if 'data.batch_size' in table and 'batch' in row:
    why = ' and batch are both given; drop one.'
    raise error(path, phase, 'flags."data.batch_size"', why)
  return {key: _plain(value) for key, value in table.items()}


def _plain(value: Any) -> Any:
  """What TOML gave, as flags have it."""
  if isinstance(value, decimal.Decimal):
    return float(value)
  return tuple(map(_plain, value)) if isinstance(value, list) else value
