# SPDX-License-Identifier: Apache-2.0
"""Recipes as files: sources, and phases that follow each other."""

import pytest

from zaya_jax import config as config_lib
from zaya_jax.config import recipe

PHASES = """
[[phase]]
name = "one"
tokens = 100
mixture = {web = 1}
lr = {from = 1.0, to = 0.5}
[[phase]]
name = "two"
tokens = 100
mixture = {web = 1, own = 3}
lr = {to = 0, shape = "linear"}
[[phase]]
name = "three"
tokens = 100
mixture = {own = 1}
"""
SOURCES = '[sources]\nweb = "data/web"\nown = {input = "stdlib"}\n'


def _load(tmp_path, text):
  path = tmp_path / 'r.toml'
  path.write_text(text)
  return recipe.load(str(path))


def test_sources_are_folders_or_texts(tmp_path):
  found = _load(tmp_path, SOURCES + PHASES)
  web, own = found.sources
  assert (web.folder('runs/x'), web.input) == ('data/web', '')
  assert (own.folder('runs/x'), own.input) == ('runs/x/data/own', 'stdlib')


def test_a_rate_begins_where_the_phase_before_ended(tmp_path):
  one, two, three = _load(tmp_path, SOURCES + PHASES).phases
  assert (one.rate.before, two.rate.before, two.rate.start) == (0, 0.5, 0.5)
  assert three.rate.at(0) == three.rate.end == 0


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    (PHASES, '[sources] is missing'),
    (SOURCES, '[[phase]] is missing'),
    ('phase = [1]\n' + SOURCES, '[[phase]] is missing'),
    (SOURCES + 'phase = 3', 'sources.phase must be a folder'),
    ('[sources]\nweb = 3\n' + PHASES, 'sources.web must be a folder'),
    ('[sources]\nweb = {}\n' + PHASES, 'sources.web must be a folder'),
    ('[sources]\nweb = {inptu = "a"}\n' + PHASES, 'did you mean input?'),
    ('sorces = 1\n' + SOURCES + PHASES, 'did you mean sources?'),
    (SOURCES + PHASES.replace('two', 'one'), 'that of another phase too'),
    ('[sources\n', 'is no TOML'),
  ],
)
def test_what_is_wrong_is_named(tmp_path, text, message):
  with pytest.raises(config_lib.UsageError) as error:
    _load(tmp_path, text)
  assert message in str(error.value)


def test_a_file_that_is_not_there(tmp_path):
  with pytest.raises(config_lib.UsageError, match='cannot be read: No such'):
    recipe.load(str(tmp_path / 'none.toml'))
