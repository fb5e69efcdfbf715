# SPDX-License-Identifier: Apache-2.0
"""Segments tile a run; whole steps, and the settings of their phase."""

import fractions

import pytest

from zaya_jax import config as config_lib
from zaya_jax.config import checks
from zaya_jax.config.recipe import segments

RECIPE = """
[sources]
web = "web"
code = "code"
[[phase]]
name = "one"
tokens = 1000
mixture = {web = 3, code = 1}
batch = ["0:2", "100:3", "101:4", "300:5"]
lr = {from = 1.0, to = 0.5}
flags = {"data.seq_len" = 16}
[[phase]]
name = "two"
tokens = 1000
mixture = {code = 0.1}
keep = "params"
[phase.flags]
"data.seq_len" = 32
"model.rope_theta" = 1e6
"optim.accumulation" = 2
"""


def _config(tmp_path, text=RECIPE, **changes):
  path = tmp_path / 'r.toml'
  path.write_text(text)
  return config_lib.Config(
    mode='train', run_dir=str(tmp_path), recipe=str(path), **changes
  )


def test_warmup_in_steps_is_of_the_first_batch(tmp_path):
  text = RECIPE.replace('to = 0.5', 'to = 0.5, warmup_steps = 3')
  first, second, *_ = segments.segments(_config(tmp_path, text))
  found = [first.learning_rate(2 * step) for step in range(4)]
  assert found[:2] == pytest.approx([1 / 3, 2 / 3])
  assert found[2] == 1.0 and second.learning_rate(8) == first.rate.at(128)
  text = RECIPE.replace('to = 0.5', 'to = 0.5, warmup_steps = 40')
  with pytest.raises(config_lib.UsageError, match='"one": lr.warmup_steps = '):
    segments.segments(_config(tmp_path, text))


def test_segments_follow_each_other_in_whole_steps(tmp_path):
  found = segments.segments(_config(tmp_path))
  sizes = [(s.phase, s.batch_size, s.steps) for s in found]
  # 100 tokens need 4 steps of 32, which reach 128: nothing is left for 3 rows.
  assert sizes == [('one', 2, 4), ('one', 4, 3), ('one', 5, 9), ('two', 16, 2)]
  for before, after in zip(found, found[1:], strict=False):
    assert before.stop_row == after.first_row
    assert before.stop_step == after.first_step
    assert before.stop_token == after.first_token
  assert [s.closes for s in found] == [False, False, True, True]
  assert [s.keep for s in found] == ['all', 'all', 'all', 'params']
  assert [s.phase_token for s in found] == [0, 128, 320, 0]
  assert found[2].stop_token == 1040
  assert found[0].weights == (
    fractions.Fraction(3, 4),
    fractions.Fraction(1, 4),
  )
  assert found[3].weights == (0, 1)


def test_the_rate_does_not_see_a_batch_ramp(tmp_path):
  found = segments.segments(_config(tmp_path))
  row = found[2].first_row + 5
  assert found[2].learning_rate(row) == found[0].rate.at(row * 16)


def test_a_segment_has_the_settings_of_its_phase(tmp_path):
  config = _config(tmp_path)
  last = segments.segments(config)[-1]
  found = segments.segment_config(config, last)
  assert (found.data.seq_len, found.model.rope_theta) == (32, 1e6)
  assert (found.optim.accumulation, found.data.batch_size) == (2, 16)
  assert found.data.dir == ('code@1.0',)
  assert found.num_steps == last.stop_step
  assert segments.current(found) == last
  # What is edited while a run goes on does not reach it.
  (tmp_path / 'r.toml').unlink()
  assert segments.segments(found)[-1] == last


def test_a_run_without_a_recipe_is_one_segment():
  config = config_lib.Config(num_steps=7)
  (found,) = segments.segments(config)
  assert (found.rows, found.steps, found.phase) == (7 * 16, 7, '')
  assert segments.current(config) == found
  assert segments.segment_config(config, found) is config


def test_a_row_has_a_segment_and_a_step(tmp_path):
  course = segments.course(_config(tmp_path))
  assert [segments.at(course.segments, r).index for r in (0, 7, 8, 999)] == [
    0, 0, 1, 3,
  ]  # fmt: skip
  moved = segments.counted_from(course, 12, 4)  # A batch was left out.
  assert [s.first_step for s in moved.segments] == [-1, 3, 6, 15]
  assert segments.counted_from(course, 12, 5) == course
  with pytest.raises(ValueError, match='within a batch'):
    segments.counted_from(course, 9, 4)


@pytest.mark.parametrize(
  ('old', 'new', 'message'),
  [
    ('seq_len" = 32', 'seq_len" = 7', 'phase "two": --data.seq_len=7 does'),
    ('seq_len" = 32', 'seq_len" = "a"', 'phase "two": --data.seq_len='),
    ('accumulation" = 2', 'accumulation" = 3', 'phase "two": --optim.accum'),
    ('optim.accumulation', 'mesh.tensor', 'two": --mesh.tensor is not a flag'),
    ('optim.accumulation" = 2', 'mesh.replica" = 6', 'two": --data.batch_size'),
    (
      'optim.accumulation" = 2',
      'mesh.context_mode" = {}',
      'two": --mesh.context_mode={} must be one of',
    ),
  ],
)
def test_what_does_not_fit_names_the_phase(tmp_path, old, new, message):
  for name in ('web', 'code'):
    (tmp_path / name).mkdir()
  text = RECIPE.replace('= "web"', f'= "{tmp_path}/web"')
  text = text.replace('= "code"', f'= "{tmp_path}/code"')
  checks.check(_config(tmp_path, text))  # Nothing is wrong with it so far.
  with pytest.raises(config_lib.UsageError) as error:
    checks.check(_config(tmp_path, text.replace(old, new)))
  assert message in str(error.value)


def test_a_source_that_is_not_there_is_named(tmp_path):
  with pytest.raises(config_lib.UsageError, match='sources.web: web is no'):
    checks.check(_config(tmp_path))


def test_the_text_of_a_source_may_lie_behind_a_url(tmp_path):
  text = RECIPE.replace('"web"', '{input = "s3://bucket/web"}')
  text = text.replace('= "code"', '= {input = "stdlib"}')
  checks.check(_config(tmp_path, text))
