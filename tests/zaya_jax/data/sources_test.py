# SPDX-License-Identifier: Apache-2.0
"""Sources of a recipe against what their manifests say."""

import types

import pytest

import pipelines.prepare
from pipelines import order
from tests.support import recipes
from zaya_jax import config as config_lib
from zaya_jax.data import sources

RECIPE = """
[sources]
web = "web"
code = "code"
[[phase]]
name = "one"
tokens = 1600
mixture = {web = 0.75, code = 0.25}
lr = {from = 1.0}
[[phase]]
name = "two"
tokens = 1600
mixture = {code = 1}
max_epochs = {code = 2}
"""


def _course(tmp_path, text=RECIPE):
  config = recipes.config(tmp_path, text)
  return config, config.course


def _manifest(tokens=10_000, record_tokens=64, tokenizer='bytes'):
  return types.SimpleNamespace(
    tokenizer=tokenizer,
    tokenizer_sha256=tokenizer,
    record_tokens=record_tokens,
    splits={'train': types.SimpleNamespace(tokens=tokens)},
  )


# The first phase reads 25 windows of code, the second 100. A source of 993
# tokens has 63: the last one is shorter.
def test_what_is_just_enough_for_two_epochs_passes(tmp_path):
  _, course = _course(tmp_path)
  sources.check(course, [_manifest(), _manifest(994)])


@pytest.mark.parametrize(
  ('manifest', 'message'),
  [
    (_manifest(993), 'phase "two", max_epochs.code = 2 is less than the 2.01'),
    (_manifest(500), 'the 3.90625 times'),
    (_manifest(500), 'about 477 tokens are missing'),
    (_manifest(1), 'phase "one", mixture.code has no token to predict'),
    (
      _manifest(tokenizer='x'),
      'phase "one", mixture.code was tokenized with x',
    ),
    (
      _manifest(record_tokens=24),
      'phase "one", flags."data.seq_len" = 16 fits',
    ),
  ],
)
def test_what_does_not_fit_names_phase_and_key(tmp_path, manifest, message):
  _, course = _course(tmp_path)
  with pytest.raises(config_lib.UsageError) as error:
    sources.check(course, [_manifest(), manifest])
  assert message in str(error.value)


LONGER = """
[sources]
web = "web"
[[phase]]
name = "one"
tokens = 500_000
lr = {from = 1.0}
flags = {"data.seq_len" = 128}
[[phase]]
name = "two"
tokens = 400_000
max_epochs = {web = MOST}
flags = {"data.seq_len" = 4096}
"""
RARE = """
[sources]
web = "web"
code = "code"
[[phase]]
name = "one"
tokens = 1_048_576
mixture = {web = 1_000_000, code = 1}
max_epochs = {code = MOST}
lr = {from = 1.0}
"""


@pytest.mark.parametrize(
  ('text', 'enough'),
  [(LONGER, 1.5), (RARE, 1.0)],
  ids=['what rows that become longer leave out', 'a share below a row'],
)
def test_epochs_are_those_of_the_order(tmp_path, text, enough):
  web, code = _manifest(1_000_000, 4096), _manifest(16, 64)
  for most in (enough, 0.99):
    _, course = _course(tmp_path, text.replace('MOST', str(most)))
    found = [web, code][: len(course.recipe.sources)]
    stretches = [
      order.Stretch(s.rows, s.seq_len, s.weights) for s in course.segments
    ]
    extents = [order.Extent(m.splits['train'].tokens, m.record_tokens)
               for m in found]  # fmt: skip
    rows = order.Order(extents, stretches, course.whole.seed)
    assert 0.99 < rows.epochs(rows.rows)[-1] <= enough
    if most == enough:
      sources.check(course, found)
    else:
      with pytest.raises(config_lib.UsageError, match='max_epochs'):
        sources.check(course, found)


def test_a_source_of_no_phase_may_be_of_any_kind(tmp_path):
  text = RECIPE.replace('code = "code"', 'code = "code"\nlater = "later"')
  _, course = _course(tmp_path, text)
  sources.check(course, [_manifest(), _manifest(), _manifest(5, 24, 'x')])


def test_shards_that_do_not_fit_are_refused_before_a_text_is_prepared(tmp_path):
  (tmp_path / 'text.txt').write_text('one and two and three. ' * 99)
  pipelines.prepare.prepare(
    str(tmp_path / 'text.txt'), tmp_path / 'code', record_tokens=24
  )
  text = RECIPE.replace('"web"', f'{{input = "{tmp_path}/text.txt"}}', 1)
  text = text.replace('code = "code"', f'code = "{tmp_path}/code"')
  config = recipes.config(tmp_path, text, run_dir=f'{tmp_path}/run')
  with pytest.raises(config_lib.UsageError, match='records of 24 tokens of co'):
    sources.open_all(recipes.entered(config, 0))
  assert not (tmp_path / 'run').exists()


def test_what_is_still_to_be_prepared_is_not_checked(tmp_path):
  _, course = _course(tmp_path)
  sources.check(course, [None, _manifest(994)])
  sources.check(course, [_manifest(), None])


def test_stretches_are_the_segments(tmp_path):
  config = recipes.entered(recipes.config(tmp_path, RECIPE), 1)
  first, second = sources.stretches(config)
  assert (first.rows, first.seq_len) == (100, 16)
  assert first.weights[0] == 3 * first.weights[1]
  assert second.weights == (0, 1)
  assert sources.folders(config) == ('web', 'code')


def test_without_a_recipe_the_folders_are_those_of_the_flags():
  config = config_lib.Config(run_dir='run')
  assert sources.folders(config) == ('run/data',)
  assert sources.stretches(config) == []
