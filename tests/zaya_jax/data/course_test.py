# SPDX-License-Identifier: Apache-2.0
"""Batches that are left out shorten their own segment, and no other."""

import pytest

from tests.support import recipes
from zaya_jax import config as config_lib
from zaya_jax.config.recipe import segments
from zaya_jax.data import course as course_lib

RECIPE = """
[sources]
web = "web"
[[phase]]
name = "one"
tokens = 320
batch = ["0:2"]
lr = {from = 1.0}
[[phase]]
name = "two"
tokens = 320
batch = ["0:4"]
"""


def _config(tmp_path, row):
  config = recipes.config(tmp_path, RECIPE)
  return recipes.entered(config, segments.at(config.course.segments, row).index)


@pytest.mark.parametrize(
  ('entered', 'row', 'skipped', 'wanted'),
  [
    (4, 4, 0, 4), (4, 4, 3, 10), (4, 4, 8, 20), (24, 24, 2, 32),
    # It led out of the first segment, where this one begins.
    (20, 4, 9, 20), (20, 4, 30, 20),
  ],
)  # fmt: skip
def test_leaving_out_ends_with_the_segment(
  tmp_path, entered, row, skipped, wanted
):
  config = _config(tmp_path, entered)
  assert course_lib.next_row(config, row, skipped) == wanted


def test_without_a_recipe_nothing_ends_it():
  config = config_lib.Config(num_steps=3)
  assert course_lib.next_row(config, 32, 10) == 32 + 160
  assert course_lib.enter(config) is config


def test_a_new_run_begins_with_the_first_segment(tmp_path):
  config = recipes.config(tmp_path, RECIPE, run_dir=str(tmp_path))
  assert segments.current(course_lib.enter(config)).index == 0
