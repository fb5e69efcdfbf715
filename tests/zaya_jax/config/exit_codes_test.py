# SPDX-License-Identifier: Apache-2.0
"""Exit codes are those that documents promise, and have one definition."""

import ast
import pathlib

import pytest

from ops import dispatch
from pipelines import errors
from zaya_jax.config import exit_codes

ROOT = pathlib.Path(__file__).parents[3]
HOME = ROOT / 'zaya_jax' / 'config' / 'exit_codes.py'


def _second_definitions(source):
  """Lines with a number of the table that means nothing else, or assigned."""
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Constant) and type(node.value) is int:
      if node.value in (exit_codes.STOPPED, exit_codes.NO_PROGRESS):
        yield node.lineno
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
      (target, *_) = node.targets
      name = getattr(target, 'id', getattr(target, 'attr', ''))
      if name == 'exit_code':
        yield node.lineno


def test_codes_are_those_that_schedulers_are_told():
  found = {k: v for k, v in vars(exit_codes).items() if k.isupper()}
  assert found == {
    'DONE': 0,
    'INTERNAL': 1,
    'USAGE': 2,
    'UNUSABLE': 3,
    'NUMERICS': 4,
    'STOPPED': 75,
    'NO_PROGRESS': 93,
  }


def test_zaya_jax_defines_them_once():
  found = [
    f'{path.relative_to(ROOT)}:{line}'
    for path in sorted((ROOT / 'zaya_jax').rglob('*.py'))
    if path != HOME
    for line in _second_definitions(path.read_text())
  ]
  assert found == []


@pytest.mark.parametrize(
  'source', ['_STOPPED = 75', 'class A:\n  exit_code = 2', 'e.exit_code = 3']
)
def test_a_second_definition_is_found(source):
  assert list(_second_definitions(source))


def test_rooms_that_stand_alone_carry_the_same_numbers():
  assert dispatch.UnsupportedError.exit_code == exit_codes.USAGE
  assert errors.DataError('').exit_code == exit_codes.USAGE
  assert errors.UNUSABLE == exit_codes.UNUSABLE
  assert errors.AGAIN == exit_codes.INTERNAL
