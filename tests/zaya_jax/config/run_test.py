# SPDX-License-Identifier: Apache-2.0
"""Runs: one of several ways to say how long they are."""

import pytest

from zaya_jax import config as config_lib

parse = config_lib.Config.parse


def test_tokens_and_epochs_become_whole_steps():
  size = ['--data.seq_len=16', '--data.batch_size=2']
  found = parse(['--tokens=1.5k', *size]).in_steps()
  assert (found.num_steps, found.tokens) == (47, '')  # 46.9 of 32 tokens.
  config = parse(['--epochs=1.5', *size])
  assert config.in_steps() == config
  assert config.in_steps(640).num_steps == 30
  assert parse(['--num_steps=3']).in_steps().num_steps == 3


def test_what_is_typed_counts_before_a_flagfile(tmp_path):
  file = tmp_path / 'a.flags'
  file.write_text('--num_steps=9\n--tokens=1M\n')
  assert parse([f'--flagfile={file}']).tokens == '1M'
  assert not parse([f'--flagfile={file}', '--num_steps=8']).tokens
  found = parse([f'--flagfile={file}', '--hours=2'])
  assert (found.tokens, found.hours) == ('', 2.0)


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    (['--tokens=1M', '--num_steps=3'], '--num_steps and --tokens both'),
    (['--tokens=1M', '--epochs=3'], '--tokens and --epochs both'),
    (['--recipe=a.toml', '--hours=3'], '--recipe and --hours both'),
    (['--tokens=0'], '--tokens=0 must be a whole number above 0'),
    (['--tokens=8G'], '--tokens=8G must be a whole number above 0'),
    (['--epochs=-1'], '--epochs=-1.0 must be at least 0'),
  ],
)
def test_two_lengths_are_refused(flags, message):
  with pytest.raises(config_lib.UsageError) as error:
    parse(flags)
  assert message in str(error.value)


def test_a_recipe_of_a_flagfile_says_the_length(tmp_path):
  file = tmp_path / 'config.flags'
  file.write_text('--num_steps=9\n--recipe=a.toml\n')
  assert parse([f'--flagfile={file}']).recipe == 'a.toml'
  with pytest.raises(config_lib.UsageError, match='--recipe and --num_steps'):
    parse([f'--flagfile={file}', '--num_steps=10'])
  with pytest.raises(config_lib.UsageError, match=r'--tokens=1M and --hours=2'):
    config_lib.Config(tokens='1M', hours=2.0)
