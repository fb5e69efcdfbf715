# SPDX-License-Identifier: Apache-2.0
"""Rules of the settings, and that each message names the flag and its value."""

import dataclasses
import typing

import pytest

from zaya_jax import config


def _bounded():
  """Every field with a bound: (section class, name, bound, value beyond)."""
  for section in typing.get_type_hints(config.Config).values():
    if dataclasses.is_dataclass(section):
      yield from _bounded_fields(section)
  yield from _bounded_fields(config.Config)


def _bounded_fields(section):
  for f in dataclasses.fields(section):
    for bound, way in (('minimum', -1), ('maximum', 1)):
      limit = f.metadata.get(bound)
      if limit is not None:
        yield section, f.name, limit, limit + way


@pytest.mark.parametrize('section, name, limit, beyond', list(_bounded()))
def test_value_beyond_its_bound_is_refused(section, name, limit, beyond):
  with pytest.raises(config.UsageError, match=f'{name}={beyond} must be at'):
    section(**{name: beyond})


@pytest.mark.parametrize(
  'make, sentence',
  [
    (lambda: config.OptimConfig(lr=float('nan')), '--optim.lr=nan must be a f'),
    (lambda: config.OptimConfig(lr=float('inf')), '--optim.lr=inf must be a f'),
    (lambda: config.Config(num_steps=1e3), '--num_steps=1000.0 must be a who'),
    (lambda: config.Config(num_steps=True), '--num_steps=True must be a whole'),
    (lambda: config.Config(resume='no'), "--resume='no' must be true or false"),
    (
      lambda: config.DataConfig(dir='data'),
      "--data.dir='data' must be a tuple",
    ),
    (lambda: config.ModelConfig(sliding_layers=(1.0,)), 'each item a whole'),
    (lambda: config.Config(prompt='\udce9'), 'must be text in UTF-8'),
  ],
)
def test_value_of_another_type_is_refused(make, sentence):
  with pytest.raises(config.UsageError) as caught:
    make()
  assert sentence in str(caught.value)


def test_whole_number_may_stand_for_a_fraction():
  assert config.OptimConfig(lr=1).lr == 1


def test_word_outside_the_choices_is_refused_with_the_choices():
  with pytest.raises(config.UsageError, match='off, zero, identity'):
    config.ModelConfig(skip='maybe')


@pytest.mark.parametrize(
  'make, words',
  [
    (
      lambda: config.ModelConfig(num_heads=6, num_kv_heads=4),
      ['--model.num_kv_heads=4', '--model.num_heads=6', '[1, 2, 3, 6]'],
    ),
    (
      lambda: config.ModelConfig(
        num_heads=3, num_kv_heads=1, head_dim=5, rope_fraction=0.4
      ),
      ['--model.head_dim=5', 'even'],
    ),
    (
      lambda: config.ModelConfig(head_dim=6, rope_fraction=0.5),
      ['--model.rope_fraction=0.5', '3 of --model.head_dim=6'],
    ),
    (
      lambda: config.ModelConfig(sliding_layers=(1, 9), sliding_window=8),
      ['--model.sliding_layers=9', '0..3'],
    ),
    (
      lambda: config.ModelConfig(sliding_window=8),
      ['--model.sliding_window=8', 'both or neither'],
    ),
    (
      lambda: config.DataConfig(seq_len=300),
      ['--data.seq_len=300', '--data.record_tokens=32768', '256'],
    ),
    (
      lambda: config.DataConfig(train_tokenizer=300, tokenizer='a.json'),
      ['--data.train_tokenizer=300', '--data.tokenizer=a.json'],
    ),
    (
      lambda: config.DataConfig(train_tokenizer=200),
      ['--data.train_tokenizer=200', '259'],
    ),
    (
      lambda: config.OptimConfig(schedule='wsd'),
      ['--optim.schedule=wsd', '--optim.decay_steps=0'],
    ),
    (
      lambda: config.Config(optim=config.OptimConfig(accumulation=3)),
      ['--optim.accumulation=3', '--data.batch_size=16', '[1, 2, 4, 8, 16]'],
    ),
  ],
)
def test_rule_across_flags_names_them_and_the_way_out(make, words):
  with pytest.raises(config.UsageError) as caught:
    make()
  assert all(word in str(caught.value) for word in words)


def test_derived_numbers_of_the_released_model():
  model = config.ModelConfig(
    num_heads=8, num_kv_heads=2, head_dim=128, num_experts=16
  )
  assert model.num_classes == 17
  assert model.d_rope == 64
  assert model.d_qk == 1280
  assert model.conv_context == 2


def test_skip_off_leaves_no_class_for_it():
  assert config.ModelConfig(num_experts=16, skip='off').num_classes == 16


def test_from_flagfile_replaces_top_level_fields(tmp_path):
  path = tmp_path / 'a.flags'
  path.write_text('--num_steps=7\n--run_dir=theirs\n')
  made = config.Config.from_flagfile(str(path), run_dir='mine')
  assert (made.num_steps, made.run_dir) == (7, 'mine')
