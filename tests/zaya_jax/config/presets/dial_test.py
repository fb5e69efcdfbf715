# SPDX-License-Identifier: Apache-2.0
"""--dial: one number against presets, papers, and flags that are given."""

import dataclasses

import pytest

from zaya_jax import config as config_lib
from zaya_jax.config.presets import dial
from zaya_jax.model import flops

parse = config_lib.Config.parse


def preset(name):
  return config_lib.Config.from_flagfile(f'configs/{name}.flags')


def test_at_40_it_is_zaya1_8b():
  found, published = parse(['--dial=40']), preset('zaya1_8b')
  assert found.model == published.model
  assert found.data.seq_len == published.data.seq_len
  count = flops.parameters(found.model)
  assert (count.total, count.active) == (8_840_488_784, 753_608_528)


def test_at_20_it_is_medium():
  found, medium = parse(['--dial=20']), preset('medium')
  assert found.model == medium.model
  assert dataclasses.replace(found.data, input='stdlib') == medium.data
  assert found.num_steps == pytest.approx(medium.num_steps, rel=0.02)


@pytest.mark.parametrize(
  'n, name, active',
  [(12, 'small', 1.3), (30, 'large', 1.2)],
)
def test_others_are_near_presets(n, name, active):
  found, other = parse([f'--dial={n}']), preset(name)
  of = lambda config: flops.parameters(config.model).active
  assert 1 / active < of(found) / of(other) < active


@pytest.mark.parametrize('name', ['quickstart', 'small', 'medium', 'large'])
def test_the_batch_is_that_of_presets(name):
  config = preset(name)
  step = config.data.batch_size * config.data.seq_len
  rows = dial.batch_size(config.num_steps * step, config.data.seq_len)
  assert 0.5 <= rows / config.data.batch_size <= 2


def test_every_dial_is_a_valid_run_and_grows():
  before = None
  for n in (*range(1, 42), 50, 64, dial.MOST):
    found = parse([f'--dial={n}'])
    model = found.model
    assert model.num_layers == n and model.num_heads % model.num_kv_heads == 0
    assert 0.39 <= model.num_heads * model.head_dim / model.d_model <= 1
    assert model.d_model / (dial.ASPECT * n) == pytest.approx(1, abs=0.25)
    count = flops.parameters(model)
    assert dial.active(dial.settings(n, {})) == pytest.approx(
      count.active, rel=0.04
    )
    tokens = found.num_steps * found.data.batch_size * found.data.seq_len
    assert tokens == pytest.approx(20 * count.active, rel=0.05)
    if before:
      assert count.active > flops.parameters(before.model).active
      assert found.optim.lr < 1.2 * before.optim.lr  # Batches double.
      assert model.vocab_size >= before.model.vocab_size
    before = found


def test_the_rate_is_that_power_of_width_layers_and_batch():
  base = dial.learning_rate(1024, 20, 131_072)
  assert base == dial.PEAK
  assert dial.learning_rate(4096, 20, 131_072) == pytest.approx(base / 2)
  assert dial.learning_rate(1024, 80, 131_072) == pytest.approx(base / 2)
  assert dial.learning_rate(1024, 20, 16 * 131_072) == pytest.approx(base * 2)


def test_what_is_given_stays_and_leads():
  found = parse(['--dial=20', '--model.d_model=512', '--optim.lr=0.5'])
  assert found.model.num_layers == 20
  assert found.model.d_model == found.model.d_expert == 512
  assert (found.model.num_heads, found.model.d_router) == (2, 128)
  assert (found.optim.lr, found.optim.lr_final) == (0.5, 0.05)
  tokens = found.num_steps * found.data.batch_size * found.data.seq_len
  active = flops.parameters(found.model).active
  assert tokens == pytest.approx(20 * active, rel=0.01)
  assert 'model.d_router' not in found.given


def test_more_tokens_get_larger_batches_and_those_a_larger_rate():
  one, ten = parse(['--dial=20']), parse(['--dial=20', '--tokens=21.4B'])
  assert ten.data.batch_size == 4 * one.data.batch_size
  assert ten.optim.lr == pytest.approx(one.optim.lr * 4**0.25, rel=0.01)
  assert ten.in_steps().num_steps == -(-21_400_000_000 // (2048 * 256))
  steps = parse(['--dial=20', f'--num_steps={4 * one.num_steps}'])
  assert steps.data.batch_size == one.data.batch_size
  assert steps.optim.lr == one.optim.lr
  rows = parse(['--dial=20', f'--data.batch_size={16 * one.data.batch_size}'])
  assert rows.optim.lr == pytest.approx(2 * one.optim.lr, rel=0.01)
  assert parse(['--dial=20', '--hours=2']).num_steps == 1000  # Not said.


def test_a_tokenizer_that_is_named_is_not_trained():
  assert parse(['--dial=20']).data.train_tokenizer == 32_768
  assert not parse(['--dial=20', '--data.tokenizer=a']).data.train_tokenizer
  found = parse(['--dial=20', '--model.vocab_size=5000'])
  assert found.data.train_tokenizer == 5000
  found = parse(['--dial=3'])
  assert (found.data.train_tokenizer, found.model.vocab_size) == (0, 320)


def test_a_run_repeats_from_its_flags(tmp_path, monkeypatch):
  found = parse(['--dial=5', '--model.num_layers=6'])
  file = tmp_path / 'config.flags'
  file.write_text(found.to_flagfile())
  monkeypatch.setattr(dial, 'PEAK', 1.0)  # Rules of tomorrow.
  assert config_lib.Config.from_flagfile(str(file)) == found
  again = parse([f'--flagfile={file}', '--optim.lr=0.1'])
  assert again.optim.lr_final == found.optim.lr_final


def test_another_dial_of_a_config_keeps_what_was_given():
  found = parse(['--dial=20', '--model.num_experts=8'])
  assert found.at_dial(3) == parse(['--dial=3', '--model.num_experts=8'])
  more = found.at_dial(3, 10**9)
  expected = parse(['--dial=3', '--model.num_experts=8', '--tokens=1B'])
  assert more.optim == expected.optim and more.data == expected.data


@pytest.mark.parametrize(
  'words, sentence',
  [
    (['--dial=-1'], '--dial=-1 must be at least 0.'),
    (['--dial=129'], '--dial=129 must be at most 128.'),
    (['--dial=9', '--model.d_model=0'], '--model.d_model=0 must be at least 1'),
    (['--dial=9', '--restore=a'], '--dial=9 sizes a new model, and --restore'),
    (
      ['--dial=9', '--flagfile=configs/small.flags'],
      '--dial=9 has nothing to size: --model.num_layers=8',
    ),
  ],
)
def test_bad_dials_are_one_sentence(words, sentence):
  with pytest.raises(config_lib.UsageError) as error:
    parse(words)
  assert str(error.value).startswith(sentence)


def test_in_python_it_is_turned_by_a_method():
  with pytest.raises(config_lib.UsageError, match='Config.at_dial'):
    config_lib.Config(dial=3)
  assert config_lib.Config().at_dial(3) == parse(['--dial=3'])
