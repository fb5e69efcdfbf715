# SPDX-License-Identifier: Apache-2.0
"""Dataclasses in JSON, there and back."""

import dataclasses
import json
from typing import Literal

import pytest

from pipelines import typed_json


@dataclasses.dataclass(frozen=True)
class Inner:
  x: int
  y: float = 0.0


@dataclasses.dataclass(frozen=True)
class Outer:
  one: Inner
  many: tuple[Inner, ...] = ()
  pairs: tuple[tuple[str, float], ...] = ()
  word: Literal['a', 'b'] | None = None
  table: dict[str, Inner] = dataclasses.field(default_factory=dict)


FULL = Outer(
  Inner(1), (Inner(2, 0.5), Inner(3)), (('n', 1.5),), 'b', {'k': Inner(4)}
)


@pytest.mark.parametrize('value', [FULL, Outer(Inner(1))])
def test_what_was_written_is_read(value):
  text = json.dumps(typed_json.plain(value))
  built = typed_json.build(Outer, {'table': {}, **json.loads(text)})
  assert built == value


def test_defaults_are_left_out():
  assert typed_json.plain(Inner(1)) == {'x': 1}
  assert typed_json.plain(Inner(1, 0.5)) == {'x': 1, 'y': 0.5}


@pytest.mark.parametrize(
  'change, error',
  [
    ({'one': {}}, KeyError),
    ({'one': {'x': 1, 'z': 1}}, KeyError),
    ({'one': {'x': True}}, TypeError),
    ({'one': {'x': '1'}}, TypeError),
    ({'word': 'c'}, TypeError),
    ({'pairs': [['n', 1.5, 2]]}, ValueError),
    ({'pairs': [[1.5, 'n']]}, TypeError),
  ],
)
def test_other_types_and_fields_are_refused(change, error):
  with pytest.raises(error):
    typed_json.build(Outer, {'table': {}, **typed_json.plain(FULL), **change})
