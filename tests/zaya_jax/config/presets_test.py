# SPDX-License-Identifier: Apache-2.0
"""What is shipped is found from every folder, and never hides one's own."""

import pathlib

import pytest

from zaya_jax import config as config_lib
from zaya_jax.config import presets

ROOT = pathlib.Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)


def test_presets_and_what_they_name_are_found_from_elsewhere():
  words = ['--flagfile=configs/chat.flags', '--recipe=configs/zaya1.toml']
  found = config_lib.Config.parse(words)
  assert found.recipe == str(ROOT / 'configs/zaya1.toml')
  assert found.data.input == str(ROOT / 'configs/chat/conversations.jsonl')
  assert found.data.tokenizer == str(ROOT / 'configs/chat')
  assert found.run_dir == 'runs/chat'


def test_a_file_of_ones_own_comes_first(tmp_path):
  (tmp_path / 'configs').mkdir()
  own = tmp_path / 'configs' / 'small.flags'
  own.write_text('--num_steps=7\n')
  read = config_lib.Config.from_flagfile('configs/small.flags')
  assert read.num_steps == 7
  own.unlink()
  read = config_lib.Config.from_flagfile('configs/small.flags')
  assert read.num_steps != 7


@pytest.mark.parametrize('path', ['configs/none', 'other/small.flags', ''])
def test_other_paths_stay(path):
  assert presets.find(path) == path


def test_a_preset_that_is_not_shipped_is_an_error():
  with pytest.raises(config_lib.UsageError, match='configs/none.flags cannot'):
    config_lib.Config.from_flagfile('configs/none.flags')
