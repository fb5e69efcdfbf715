# SPDX-License-Identifier: Apache-2.0
"""CHANGELOG.md and CITATION.cff tell of the version that the package has."""

import pathlib
import re

import pytest

from tests.support import scripts
from zaya_jax import config

ROOT = pathlib.Path(__file__).parent.parent


def test_changelog_and_citation_have_the_version_of_the_package():
  log = (ROOT / 'CHANGELOG.md').read_text()
  heads = re.findall(r'^## \[(.+?)\](?: - (\S+))?$', log, re.M)
  assert heads[0] == ('Unreleased', '')
  (version, date), *_ = heads[1:]
  assert version == config.VERSION
  cited = (ROOT / 'CITATION.cff').read_text()
  assert f'\nversion: {version}\n' in cited
  assert f'\ndate-released: {date}\n' in cited


def test_each_version_has_kinds_of_changes_that_readers_know():
  log = (ROOT / 'CHANGELOG.md').read_text()
  kinds = set(re.findall(r'^### (.*)$', log, re.M))
  assert kinds <= {
    *('Added', 'Changed', 'Deprecated', 'Removed', 'Fixed', 'Security')
  }


@pytest.fixture(scope='module')
def release():
  return scripts.load('ci/release.py')


LOG = """# Changelog

## [Unreleased]

## [1.2.0] - 2026-11-25

### Added

- A thing.

## [1.1.0] - 2026-10-01

- An older thing.
"""
CITED = 'title: it\nversion: 1.2.0\ndate-released: 2026-11-25\n'


def test_a_release_that_is_told_has_no_faults(release):
  assert release.version() == config.VERSION
  assert release.faults('1.2.0', LOG, CITED) == []


@pytest.mark.parametrize(
  'old, new, fault',
  [
    ('1.2.0', '1.3.0', 'no section "## [1.2.0] - YYYY-MM-DD"'),
    (' - 2026-11-25', '', 'no section "## [1.2.0] - YYYY-MM-DD"'),
    ('- A thing.', '', 'says nothing under [1.2.0]'),
    ('[Unreleased]\n', '[Unreleased]\n\n- New.\n', 'belong to [1.2.0]'),
    ('2026-11-25', '2026-11-26', 'not say "date-released: 2026-11-26"'),
  ],
)
def test_what_is_not_told_is_a_fault(release, old, new, fault):
  (found,) = release.faults('1.2.0', LOG.replace(old, new), CITED)
  assert fault in found


def test_another_version_cited_is_a_fault(release):
  cited = CITED.replace('1.2.0', '1.1.0')
  (found,) = release.faults('1.2.0', LOG, cited)
  assert found == 'CITATION.cff does not say "version: 1.2.0".'
