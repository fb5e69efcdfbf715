# SPDX-License-Identifier: Apache-2.0
"""What a run takes from the model that it starts from, and what it may say."""

import dataclasses
import json
import re
import shutil

import pytest

from tests.support import tuning
from zaya_jax import config as config_lib
from zaya_jax.config.recipe import segments
from zaya_jax.runtime import clock
from zaya_jax.train import inherit

SOURCE = {'num_layers': 2, 'd_model': 16, 'rope_theta': 5e6, 'skip': 'zero'}


def settings(*args, source=tuning.GOLDEN):
  given = [f'--restore={source}', '--run_dir=none', *args]
  return inherit.settings(config_lib.Config.parse(given))


def test_what_is_not_said_is_that_of_the_source():
  model = settings().model
  assert {name: getattr(model, name) for name in SOURCE} == SOURCE


@pytest.mark.parametrize('name', sorted(config_lib.OF_THE_RUN))
def test_how_a_model_is_computed_is_said_by_the_run(name):
  said = {
    'dtype': 'float32',
    'remat': 'cheap',
    'scan_layers': 'false',
    'init_std': 0.5,
    'temperature_init': 0.5,
    'eda': False,
    'residual_scaling': False,
  }[name]
  found = settings(f'--model.{name}={str(said).lower()}').model
  assert getattr(found, name) == said
  silent = settings().model
  assert found == dataclasses.replace(silent, **{name: said}) != silent


@pytest.mark.parametrize(
  'flag', ['--model.rope_theta=10000', '--model.norm_eps=1e-5']
)
def test_default_that_is_said_is_no_silence(flag):
  name, value = re.fullmatch(r'--model.(\w+)=(.*)', flag).groups()
  assert getattr(settings(flag).model, name) == float(value)


@pytest.mark.parametrize(
  'flag, there',
  [
    ('--model.num_layers=4', '2'),  # Each is the default.
    ('--model.d_model=256', '16'),
    ('--model.vocab_size=320', '29'),
    ('--model.skip=off', 'zero'),
  ],
)
def test_contradiction_is_refused_by_name(flag, there):
  with pytest.raises(config_lib.UsageError) as error:
    settings(flag)
  assert f'{flag} (there: {there})' in str(error.value)


def test_settings_that_fit_other_arrays_are_the_users():
  # In Python nobody says which were given: what is not at its default.
  config = config_lib.Config(
    run_dir='none',
    restore=str(tuning.GOLDEN),
    model=config_lib.ModelConfig(rope_theta=1e6, skip='identity'),
  )
  model = inherit.settings(config).model
  assert (model.rope_theta, model.skip) == (1e6, 'identity')
  assert (model.num_layers, model.d_model, model.vocab_size) == (2, 16, 29)


def test_tokenizer_is_that_of_the_source_unless_said(tmp_path):
  folder = tmp_path / 'hf'
  tuning.model_folder(folder)
  assert settings(source=folder).data.tokenizer == str(folder)
  said = settings('--data.tokenizer=bytes', source=folder)
  assert said.data.tokenizer == 'bytes'
  # Without a tokenizer file there are bytes.
  folder = shutil.copytree(tuning.GOLDEN, tmp_path / 'without')
  assert settings(source=folder).data.tokenizer == 'bytes'


def test_flagfile_says_what_was_said(tmp_path):
  """As a supervisor gives it to its ranks, before the source is read."""
  args = [f'--restore={tuning.GOLDEN}', '--run_dir=none']
  for more in ([], ['--model.rope_theta=10000']):
    config = config_lib.Config.parse([*args, *more])
    path = tmp_path / 'train.flags'
    path.write_text(config.to_flagfile())
    again = config_lib.Config.from_flagfile(str(path))
    assert again == config
    assert inherit.settings(again) == inherit.settings(config)
  # Of a run that has begun nothing is left open.
  text = inherit.settings(config).to_flagfile()
  assert '\n--model.num_layers=2\n' in text
  path.write_text(text)
  found = inherit.settings(config_lib.Config.from_flagfile(str(path)))
  assert found == inherit.settings(config)


def about(num_steps, **optim):
  """The meta of a checkpoint, as far as the schedule goes."""
  optim = config_lib.OptimConfig(**optim)
  config = config_lib.Config(num_steps=num_steps, optim=optim)
  return {'config': json.loads(json.dumps(config.as_dict()))}


@pytest.mark.parametrize(
  'there, args, expected',
  [
    # Steps of the run and of its schedule there; the flags now; the steps now.
    ((1000, 0), '--num_steps=1400', 1000),
    ((1000, 0), '--num_steps=600', 1000),
    ((1000, 0), '--num_steps=1000', 0),  # It need not be said.
    ((1400, 1000), '--num_steps=1400', 1000),
    ((1400, 1000), '--num_steps=2000', 1000),
    ((1000, 0), '--num_steps=1400 --optim.schedule_steps=1400', 1400),
    ((1400, 1000), '--num_steps=1400 --optim.schedule_steps=1200', 1200),
  ],
)
def test_run_that_goes_on_keeps_its_schedule_unless_told(there, args, expected):
  num_steps, schedule_steps = there
  before = about(num_steps, schedule_steps=schedule_steps)
  config = config_lib.Config.parse(args.split())
  found, notes = inherit.schedule(config, before)
  optim = dataclasses.replace(config.optim, schedule_steps=expected)
  assert found == dataclasses.replace(config, optim=optim)
  assert bool(notes) == (config.optim.schedule_steps != expected)


def test_checkpoint_older_than_the_setting_has_the_schedule_of_its_steps():
  before = about(1000)
  del before['config']['optim']['schedule_steps']
  found, _ = inherit.schedule(config_lib.Config(num_steps=1400), before)
  assert found.optim.schedule_steps == 1000


@pytest.mark.parametrize(
  'num_steps, words',
  [
    (1400, 'stays at 0.0002 after it; --optim.schedule_steps=1400 stretches'),
    # In the middle of a cosine without warmup: halfway from 2e-3 to 2e-4.
    (500, 'ends at 0.0011; --optim.schedule_steps=500 shortens it'),
  ],
)
def test_kept_schedule_is_told(num_steps, words):
  optim = config_lib.OptimConfig(warmup_steps=0)
  config = config_lib.Config(num_steps=num_steps, optim=optim)
  _, (note,) = inherit.schedule(config, about(1000))
  assert f'schedule of 1,000 steps that was run and {words}' in note
  optim = dataclasses.replace(optim, schedule='constant')
  config = dataclasses.replace(config, optim=optim)
  assert inherit.schedule(config, about(1000))[1] == []


def test_what_was_given_is_no_setting():
  config = config_lib.Config.parse(['--seed=3'])
  assert config.given == {'seed'}
  assert config == config_lib.Config(seed=3)
  assert 'given' not in json.dumps(config.as_dict())


def test_hours_are_measured_and_then_counted(tmp_path, monkeypatch):
  optim = config_lib.OptimConfig(warmup_steps=30)
  config = config_lib.Config(run_dir=str(tmp_path), hours=2.0, optim=optim)
  first = inherit.length(config)
  assert first.num_steps == 50  # The warmup, and those that are measured.
  assert not segments.is_last(first)
  rows = [{'step': 1, 'time/step_s': 9.0}, {'step': 50, 'time/step_s': 0.5}]
  (tmp_path / 'metrics.jsonl').write_text('\n'.join(map(json.dumps, rows)))
  monkeypatch.setattr(clock, 'elapsed', lambda: 1200.0)
  found = inherit.timed(config)
  assert found.num_steps == 50 + (7200 - 1200) * 2
  assert found.optim.schedule_steps == found.num_steps
  assert segments.is_last(found)


def test_without_hours_a_length_is_as_it_is_said():
  config = config_lib.Config(num_steps=7)
  assert inherit.length(config) is config
