# SPDX-License-Identifier: Apache-2.0
"""The past of a recipe is refused when it differs, and the future is not."""

import json

import pytest

from tests.support import recipes
from zaya_jax import config as config_lib
from zaya_jax.data import history

RECIPE = """
[sources]
web = "web"
code = "code"
[[phase]]
name = "one"
tokens = 320
mixture = {web = 3, code = 1}
batch = ["0:2", "160:4"]
lr = {from = 1.0}
[[phase]]
name = "two"
tokens = 320
mixture = {code = 1}
lr = {to = 0.5}
"""
# Rows 0 to 10 and 10 to 22 of the first phase, then those of the second.
EDITS = [  # What, by what, at which rows it is refused, and by which phase.
  ('web = 3', 'web = 2', (1, 22, 30), 'phase "one", mixture'),
  ('"0:2"', '"0:4"', (1, 22, 30), 'phase "one", batch'),
  ('"160:4"', '"160:8"', (11, 30), 'phase "one", batch'),
  ('"160:4"', '"240:4"', (11, 30), 'phase "one", tokens'),
  ('from = 1.0', 'from = 2.0', (1, 30), 'phase "one", lr'),
  ('tokens = 320', 'tokens = 200', (22, 30), 'phase "one", tokens'),
  ('tokens = 320', 'tokens = 640', (23, 30), 'phase "one", tokens'),
  ('to = 0.5', 'to = 0.4', (23, 30), 'phase "two", lr'),
  ('name = "two"', 'name = "2"', (23,), 'phase "two", phase'),
  ('to = 0.5}', 'to = 0.5}\nkeep = "params"', (23,), 'phase "two", keep'),
]


def _course(tmp_path, text):
  config = recipes.config(tmp_path, text)
  return config, config.course


def _about(course, row):
  record = json.loads(json.dumps(history.record(course)))  # As it comes back.
  return {'recipe': record, 'data_index': row, 'tokens': row * 16}


@pytest.mark.parametrize(('old', 'new', 'refused', 'message'), EDITS)
@pytest.mark.parametrize('row', [1, 10, 11, 22, 23, 30])
def test_only_rows_to_come_may_change(
  tmp_path, old, new, refused, message, row
):
  config, course = _course(tmp_path, RECIPE)
  about = _about(course, row)
  history.check(config, course, about, row // 2)
  _, edited = _course(tmp_path, RECIPE.replace(old, new, 1))
  # Of the rows listed, and all between them.
  if min(refused) <= row <= max(*refused, min(refused)):
    with pytest.raises(config_lib.UsageError, match='was .* now') as error:
      history.check(config, edited, about, row // 2)
    assert message in str(error.value)
  elif row < min(refused):
    history.check(config, edited, about, row // 2)


def test_sources_keep_their_order(tmp_path):
  config, course = _course(tmp_path, RECIPE)
  about = _about(course, 5)
  more = RECIPE.replace('code = "code"\n[', 'code = "code"\nnew = "new"\n[')
  history.check(config, _course(tmp_path, more)[1], about, 2)
  swapped = RECIPE.replace(
    'web = "web"\ncode', 'new = "new"\nweb = "web"\ncode'
  )
  with pytest.raises(config_lib.UsageError, match='were web, code, in this'):
    history.check(config, _course(tmp_path, swapped)[1], about, 2)


def test_a_run_keeps_its_recipe(tmp_path):
  config, course = _course(tmp_path, RECIPE)
  with pytest.raises(config_lib.UsageError, match='was trained by'):
    history.check(config, None, _about(course, 3), 1)
  history.check(config, None, {'data_index': 3}, 1)
  history.check(config, course, {'data_index': 3}, 1)  # Refused elsewhere.


def test_folders_are_weighed_by_the_tokens_of_all_phases(tmp_path):
  _, course = _course(tmp_path, RECIPE)
  found = history.folders(_about(course, 3)['recipe'])
  # 22 rows of the first phase, 20 of the second.
  assert found == ('web@264.0', 'code@408.0')
