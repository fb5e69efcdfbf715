# SPDX-License-Identifier: Apache-2.0
"""Sources of a recipe against what their manifests say."""

import dataclasses
import types

import pytest

from zaya_jax import config as config_lib
from zaya_jax.config import segments
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
  path = tmp_path / 'r.toml'
  path.write_text(text)
  data = config_lib.DataConfig(seq_len=16, batch_size=4)
  config = config_lib.Config(recipe=str(path), run_dir='run', data=data)
  return config, segments.course(config)


def _manifest(tokens=10_000, record_tokens=64, tokenizer='bytes'):
  return types.SimpleNamespace(
    tokenizer=tokenizer,
    tokenizer_sha256=tokenizer,
    record_tokens=record_tokens,
    splits={'train': types.SimpleNamespace(tokens=tokens)},
  )


# The first phase reads 400 tokens of code, the second 1,600.
def test_two_epochs_of_a_thousand_tokens_are_just_enough(tmp_path):
  _, course = _course(tmp_path)
  sources.check(course, [_manifest(), _manifest(1000)])


@pytest.mark.parametrize(
  ('manifest', 'message'),
  [
    (_manifest(999), 'phase "two", max_epochs.code = 2 allows 2.00k tokens'),
    (_manifest(500), '2.00k are read by the end of the phase: 1.00k are'),
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


def test_a_source_of_no_phase_may_be_of_any_kind(tmp_path):
  text = RECIPE.replace('code = "code"', 'code = "code"\nlater = "later"')
  _, course = _course(tmp_path, text)
  sources.check(course, [_manifest(), _manifest(), _manifest(5, 24, 'x')])


def test_stretches_are_the_segments(tmp_path):
  config, course = _course(tmp_path)
  config = dataclasses.replace(config, course=course)
  config = segments.segment_config(config, course.segments[1])
  first, second = sources.stretches(config)
  assert (first.rows, first.seq_len) == (100, 16)
  assert first.weights[0] == 3 * first.weights[1]
  assert second.weights == (0, 1)
  assert sources.folders(config) == ('web', 'code')


def test_without_a_recipe_the_folders_are_those_of_the_flags():
  config = config_lib.Config(run_dir='run')
  assert sources.folders(config) == ('run/data',)
  assert sources.stretches(config) == []
