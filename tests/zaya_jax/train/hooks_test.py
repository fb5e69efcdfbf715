# SPDX-License-Identifier: Apache-2.0
"""The end of a run with an adapter: nothing holds the sums of all layers."""

import json

import pytest

from tests.support import tuning
from zaya_jax import main
from zaya_jax.inference import score
from zaya_jax.inference.adapted import moved
from zaya_jax.inference.decoding import network

FLAGS = [
  '--lora.rank=2', '--lora.alpha=4', '--quant=int4', '--optim.lr=0.03',
  '--num_steps=6', '--log.sample_every=6', '--prompt=Say 3 twice.',
  '--generate.max_tokens=6', '--generate.temperature=0', '--generate.chat',
  '--model.scan_layers=false',
]  # fmt: skip


@pytest.fixture(scope='module')
def home(tmp_path_factory):
  """A run whose decoder could not be made; `loops` says how it was scored."""
  folder, loops = tuning.home(tmp_path_factory.mktemp('end')), []

  def refused(*_):
    raise AssertionError('The weights of all layers were laid out.')

  def seen(make, model_of=lambda config: config):
    def made(config, *how):
      loops.append(model_of(config).scan_layers)
      return make(config, *how)

    return made

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(network, 'prepare', refused)
    patch.setattr(score, 'make_eval_step', seen(score.make_eval_step))
    of_run = seen(moved.make_step, lambda config: config.model)
    patch.setattr(moved, 'make_step', of_run)
    text = f'--data.input={folder}/chats.jsonl'
    assert tuning.tune(folder / 'hf', folder / 'run', text, *FLAGS) == 0
  return folder, loops


def test_layers_are_in_a_loop_where_training_writes_them_out(home):
  assert home[1] == ['true', 'true']


def test_sample_is_what_the_merged_model_says(home, capsys):
  folder, _ = home
  (file,) = (folder / 'run' / 'samples').iterdir()
  merged = ['--mode=generate', f'--run_dir={folder}/run', *FLAGS[6:10]]
  assert main.main(['zaya_jax', *merged]) == 0
  said = capsys.readouterr().out.strip()
  assert said and file.read_text().strip().endswith(said)


def test_loss_is_that_of_the_merged_model(home, capsys):
  folder, _ = home
  lines = (folder / 'run' / 'metrics.jsonl').read_text().splitlines()
  (mine,) = [row for row in map(json.loads, lines) if 'val/loss' in row]
  assert main.main(['zaya_jax', '--mode=eval', f'--run_dir={folder}/run']) == 0
  theirs = json.loads(capsys.readouterr().out)
  assert mine['val/loss'] == pytest.approx(theirs['nll'], rel=1e-5)
