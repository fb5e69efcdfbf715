# SPDX-License-Identifier: Apache-2.0
"""CHANGELOG.md and CITATION.cff tell of the version that the package has."""

import pathlib
import re

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
