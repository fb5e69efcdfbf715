# SPDX-License-Identifier: Apache-2.0
"""The list of mutants fits the sources, and the runner tells the truth."""

import textwrap

import pytest

from tests.mutants import runner

MUTANTS = runner.read()
SOURCE = 'def add(a, b):\n  return a + b\n'
TESTS = """
from {name} import add
def test_zero():
  assert add(1, 0) == 1
def test_add():
  assert add(1, 2) == 3
"""


def mutant(**changes):
  entry = {
    'file': 'source.py',
    'old': 'a + b',
    'new': 'a - b',
    'tests': ('test_it.py',),
  }
  return runner.Mutant(**entry | changes)


@pytest.fixture
def tree(tmp_path):
  (tmp_path / 'source.py').write_text(SOURCE)
  (tmp_path / 'test_it.py').write_text(TESTS.format(name='source'))
  (tmp_path / 'pytest.ini').write_text('[pytest]\n')
  return tmp_path


@pytest.mark.parametrize('entry', MUTANTS, ids=str)
def test_entry_applies(entry):
  assert entry.changed(runner.ROOT)


def test_no_entry_is_there_twice():
  assert len(set(MUTANTS)) == len(MUTANTS)


@pytest.mark.parametrize(
  'changes, fault',
  [
    ({'old': 'a * b'}, 'found 0 times'),
    ({'old': 'a'}, 'found 3 times'),
    ({'new': 'a + b'}, 'nothing is changed'),
    ({'new': 'a +'}, 'not Python'),
    ({'tests': ()}, 'no test is named'),
    ({'tests': ('test_it.py::test_add', 'gone.py')}, 'there is no gone.py'),
    ({'file': 'gone.py'}, 'there is no gone.py'),
  ],
)
def test_entry_that_does_not_apply_is_refused(tree, changes, fault):
  with pytest.raises(ValueError, match=fault):
    mutant(**changes).changed(tree)


@pytest.mark.parametrize(
  'changes, verdict',
  [
    ({}, None),
    ({'old': 'def add', 'new': 'def sub'}, None),  # The import fails.
    ({'tests': ('test_it.py::test_zero',)}, 'survived'),
    ({'tests': ('test_it.py::gone',)}, 'pytest ended with 4'),
  ],
)
def test_verdict(tree, changes, verdict):
  assert runner.survives(mutant(**changes), tree) == verdict
  assert (tree / 'source.py').read_text() == SOURCE


def test_test_that_fails_anyway_kills_nothing(tree):
  (tree / 'test_it.py').write_text('def test_it():\n  assert False\n')
  assert runner.survives(mutant(), tree) == 'the test fails without it, too'


def test_mutant_that_never_ends_is_killed(tree, monkeypatch):
  monkeypatch.setattr(runner, '_PATIENCE_S', 2.0)
  endless = mutant(old='return a + b', new='while True: pass')
  assert runner.survives(endless, tree) is None


def test_run_works_in_copies(tree, capsys):
  mutants = [mutant(new='b + a'), mutant(new='a * b')]
  assert runner.run(mutants, tree, jobs=2) == 1
  said = capsys.readouterr().out
  assert said.count('killed, ') == 1 and said.count('survived, ') == 1
  assert '1 of 2 killed.' in said
  assert (tree / 'source.py').read_text() == SOURCE
  assert sorted(path.name for path in tree.iterdir()) == [
    'pytest.ini',
    'source.py',
    'test_it.py',
  ]


def test_list_is_read_in_order(tmp_path):
  entry = textwrap.dedent("""
    [[mutant]]
    file = '{}'
    old = 'a'
    new = 'b'
    tests = ['c']
  """)
  (tmp_path / 'b.toml').write_text(entry.format('3'))
  (tmp_path / 'a.toml').write_text(entry.format('1') + entry.format('2'))
  assert [m.file for m in runner.read(tmp_path)] == ['1', '2', '3']
