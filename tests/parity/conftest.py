# SPDX-License-Identifier: Apache-2.0
"""Builds each pair of models once, and prints what was achieved."""

import functools
from collections.abc import Callable

import pytest

from tests.parity import cases, pairs

_ACHIEVED = 'achieved'


@pytest.fixture(scope='session')
def pair_of(
  tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], pairs.Pair]:
  """Both models of the case with this name."""
  named = {case.name: case for case in cases.ALL}

  @functools.cache
  def build(name):
    return pairs.build(named[name], str(tmp_path_factory.mktemp(name)))

  return build


@pytest.fixture(params=[case.name for case in cases.ALL])
def pair(
  request: pytest.FixtureRequest, pair_of: Callable[[str], pairs.Pair]
) -> pairs.Pair:
  """Every case in turn."""
  return pair_of(request.param)


@pytest.fixture
def achieved(request: pytest.FixtureRequest) -> Callable[[str], None]:
  """Takes one line for the table that is printed at the end."""
  # Reports carry them from the process of a test to the one that prints.
  lines = request.node.user_properties
  return lambda text: lines.append((_ACHIEVED, f'{text}  {request.node.name}'))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
  """Prints the errors that the tests found, passed or not."""
  terminalreporter.section(_ACHIEVED)
  for reports in terminalreporter.stats.values():
    for report in reports:
      if getattr(report, 'when', '') == 'call':
        for name, line in report.user_properties:
          if name == _ACHIEVED:
            terminalreporter.write_line(line)
