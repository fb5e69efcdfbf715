# SPDX-License-Identifier: Apache-2.0
"""Runs pytest under `bazel test`: configuration, --test_filter, test.xml."""

import os
import sys

import pytest


def main(argv: list[str]) -> int:
  """Runs the test files in `argv[1:]`.

  Args:
    argv: the program, then test files and further arguments of pytest.

  Returns:
    The exit code of pytest; a file without tests is an error, one whose tests
    are all `long` is not.
  """
  # Bazel puts the libraries on sys.path; programs that a test starts need it.
  os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, sys.path))
  left_out = _LeftOut()
  code = pytest.main([*_bazel_args(os.environ), *argv[1:]], plugins=[left_out])
  if code == pytest.ExitCode.NO_TESTS_COLLECTED and left_out.tests:
    return 0
  return int(code)


class _LeftOut:
  """Counts tests that are not to run here: `make test-long` runs them."""

  tests = 0

  def pytest_deselected(self, items: list[pytest.Item]) -> None:
    """What pytest calls."""
    self.tests += len(items)


def _bazel_args(environ: os._Environ[str]) -> list[str]:
  args = ['--config-file=pyproject.toml', '-p', 'no:cacheprovider']
  if 'TEST_TMPDIR' in environ:
    args.append(f'--basetemp={environ["TEST_TMPDIR"]}/pytest')
  if 'XML_OUTPUT_FILE' in environ:
    args.append(f'--junitxml={environ["XML_OUTPUT_FILE"]}')
  if 'TESTBRIDGE_TEST_ONLY' in environ:
    args.append(f'-k={environ["TESTBRIDGE_TEST_ONLY"]}')
  return args


if __name__ == '__main__':
  sys.exit(main(sys.argv))
