# SPDX-License-Identifier: Apache-2.0
"""What a run with a recipe says on the terminal."""

import pytest

from tests.support import recipes
from zaya_jax import config as config_lib
from zaya_jax.config.recipe import segments
from zaya_jax.metrics import course as course_lib

RECIPE = """
[sources]
web = "web"
code = "code"
[[phase]]
name = "one"
tokens = 1000
mixture = {web = 0.75, code = 0.25}
batch = ["0:2", "500:4"]
lr = {from = 1e-2, warmup = 100}
[[phase]]
name = "second"
tokens = 1600
mixture = {code = 1}
lr = {to = 0, shape = "linear"}
keep = "params"
"""


@pytest.fixture
def config(tmp_path):
  return recipes.config(tmp_path, RECIPE)


def test_all_phases_are_shown_with_what_rounding_adds(config):
  recipe, one, second = course_lib.overview(config)
  assert '2 phases, 2.62k tokens in 49 steps' in recipe
  assert one == (
    '  1 one     1.00k tokens (and 24, for whole steps), 2 > 4 rows of 16, '
    'lr 0 > 0.01 constant, web 75%, code 25%'
  )
  assert second == (
    '  2 second  1.60k tokens, 4 rows of 16, lr 0.01 > 0 linear, code'
  )


def test_each_segment_says_what_follows_it(config):
  first, second, last = config.course.segments
  enter = lambda s, row: course_lib.entered(
    segments.segment_config(config, s), row
  )
  assert enter(first, 0).endswith('; 4 rows from step 16 (token 512) on')
  assert enter(second, 36).startswith(
    'phase 1 of 2: one, from token 576: 4 rows'
  )
  assert enter(second, 36).endswith('second follows at step 24 (token 1.02k)')
  assert 'lr 1.00e-02, code; the run ends at step 49' in enter(last, 64)
  leave = lambda s: course_lib.left(segments.segment_config(config, s), 2.5)
  assert leave(first).startswith('one: a batch of 2 rows is done with')
  assert leave(second) == (
    'phase one is done at step 24, token 1.02k, loss 2.5000; parameters and '
    'balance are kept, the optimizer begins anew'
  )


def test_a_run_without_a_recipe_says_nothing():
  assert not list(course_lib.overview(config_lib.Config()))
