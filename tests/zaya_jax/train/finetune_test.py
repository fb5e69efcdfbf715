# SPDX-License-Identifier: Apache-2.0
"""From a Hugging Face folder, on conversations, from the command line."""

import dataclasses
import functools
import json
import shutil

import jax
import numpy as np
import pytest
import safetensors.numpy

from pipelines import tokenizer as tokenizer_lib
from pipelines.shards import manifest
from tests.support import compiled, tiny, tuning
from tests.support.tuning import conversations, tune
from zaya_jax import config as config_lib
from zaya_jax import main
from zaya_jax.inference import generate
from zaya_jax.inference import load as load_lib
from zaya_jax.train import gradients


@pytest.fixture(scope='module', autouse=True)
def compiled_once():
  yield from compiled.once()


@pytest.fixture(scope='module')
def source(tmp_path_factory):
  """A tiny model as a Hugging Face folder, with a tokenizer and template."""
  folder = tmp_path_factory.mktemp('model') / 'hf'
  tuning.model_folder(folder)
  return folder


@pytest.fixture(scope='module')
def tuned(source, tmp_path_factory):
  """A run on conversations that started from `source`."""
  folder = tmp_path_factory.mktemp('tuned')
  text = tuning.write(folder / 'chats.jsonl', numbers=60)
  args = [f'--data.input={text}', '--prompt=Say 3 twice.']
  with pytest.MonkeyPatch.context() as patch:
    # A model of 40 steps says the same to all prompts: keep what it is given.
    row = lambda *a: kept.append(model_row(*a)) or kept[-1]
    kept, model_row = [], generate.row
    patch.setattr(generate, 'row', row)
    assert tune(source, folder / 'run', *args) == 0
  np.save(folder / 'prompt.npy', *kept)
  return folder / 'run'


def nll(capsys, source, shards):
  """The loss of a model on the held-out part of shards."""
  capsys.readouterr()
  code = main.main([
    'zaya_jax', '--mode=eval', f'--source={source}', f'--data.dir={shards}',
    '--data.seq_len=64', '--data.record_tokens=1024', '--data.batch_size=8',
  ])  # fmt: skip
  assert code == 0
  return json.loads(capsys.readouterr().out)['nll']


@pytest.mark.parametrize('value', [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_refused(
  source, tmp_path, capsys, value
):
  folder = tmp_path / 'hf'
  shutil.copytree(source, folder)
  path = folder / 'model.safetensors'
  tensors = safetensors.numpy.load_file(path)
  tensors['model.embed_tokens.weight'][7, 3] = value
  safetensors.numpy.save_file(tensors, path, {'format': 'pt'})
  text = tuning.write(tmp_path / 'chats.jsonl', numbers=60)
  assert tune(folder, tmp_path / 'run', f'--data.input={text}') == 3
  told = capsys.readouterr().err
  assert f'error: {folder} holds NaN or Inf in params/embed' in told


def test_held_out_loss_falls(source, tuned, capsys):
  before, after = (nll(capsys, m, tuned / 'data') for m in (source, tuned))
  assert before == pytest.approx(np.log(259), abs=0.5)
  assert after < 0.5 * before


def test_model_and_tokenizer_are_those_of_the_source(source, tuned):
  config = config_lib.Config.from_flagfile(str(tuned / 'config.flags'))
  theirs, ours = load_lib.load(str(source)), load_lib.load(str(tuned))
  own = {'temperature_init': 1.0, 'remat': 'none'}
  assert dataclasses.replace(theirs.config, **own) == config.model
  assert config.data.tokenizer == str(source)
  assert ours.tokenizer.sha256 == theirs.tokenizer.sha256
  assert manifest.load(tuned / 'data').splits['train'].counted_tokens > 0


def test_run_keeps_the_template_and_stops_at_the_end_of_a_turn(tuned):
  model = load_lib.load(str(tuned))
  messages = conversations(1)[0]['messages']
  text = model.tokenizer.template.render(messages[:1], True)
  assert text.endswith('<|im_start|>assistant\n')
  assert 258 in model.stop_ids  # <|im_end|>


def test_samples_of_conversations_are_answers(tuned):
  tokenizer = tokenizer_lib.load(str(tuned))
  question = [{'role': 'user', 'content': 'Say 3 twice.'}]
  asked = tokenizer.template.render(question, True)
  ids, _ = tokenizer.encode_chat([(asked, False)])
  assert np.load(tuned.parent / 'prompt.npy').tolist() == ids.tolist()
  sample = (tuned / 'samples' / 'step_000040.txt').read_text()
  assert sample.startswith('Say 3 twice.\n')
  config = config_lib.Config.from_flagfile(str(tuned / 'config.flags'))
  assert config.generate.chat  # The last line of the run suggests it.


def test_run_goes_on_without_its_source(source, tuned, tmp_path):
  run_dir = shutil.copytree(tuned, tmp_path / 'run')
  text = tuned.parent / 'chats.jsonl'
  assert source.rename(source.with_name('away'))
  try:
    args = [f'--data.input={text}', '--num_steps=41']
    assert tune(source, run_dir, *args) == 0
  finally:
    source.with_name('away').rename(source)
  assert (run_dir / 'checkpoints' / '41').exists()


@pytest.mark.parametrize(
  'args, words',
  [
    (
      ['--model.d_model=32', '--model.num_layers=3'],
      '--model.num_layers=3 (there: 2), --model.d_model=32 (there: 16)',
    ),
    (['--data.tokenizer=nowhere'], '--data.tokenizer=nowhere'),
    (['--data.train_tokenizer=259'], 'chat template'),
  ],
)
def test_what_does_not_fit_is_refused(
  source, tuned, tmp_path, capsys, args, words
):
  text = tuned.parent / 'chats.jsonl'
  code = tune(source, tmp_path / 'run', f'--data.input={text}', *args)
  assert code == 2
  assert words in capsys.readouterr().err
  assert not (tmp_path / 'run' / 'config.flags').exists()


@pytest.mark.long  # balance_test has a rate of zero, for each rule.
def test_frozen_balancing_bias_stays_to_the_bit(source, tuned, tmp_path):
  text = tuned.parent / 'chats.jsonl'
  args = [f'--data.input={text}', '--num_steps=2']
  frozen = tmp_path / 'run'
  assert tune(source, frozen, *args, '--optim.balance_lr=0') == 0
  before = load_lib.load(str(source)).buffers
  for run_dir, same in [(frozen, True), (tuned, False)]:
    after = load_lib.load(str(run_dir)).buffers
    equal = jax.tree.map(lambda a, b: bool((a == b).all()), before, after)
    assert all(jax.tree.leaves(equal)) == same


def test_toy_conversations_fit_the_quick_start(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tuning.ROOT)
  words = ['--mode=prepare', '--flagfile=configs/chat.flags']
  assert main.main(['zaya_jax', *words, f'--output={tmp_path}/data']) == 0
  assert 'skipped' not in capsys.readouterr().out
  toy = config_lib.Config.from_flagfile('configs/chat.flags')
  quick = config_lib.Config.from_flagfile('configs/quickstart.flags')
  assert toy.restore == quick.run_dir
  tokenizer = tokenizer_lib.load(toy.data.tokenizer)
  assert tokenizer.vocab_size <= quick.model.vocab_size
  text = 'Every byte: \x00\t\n~\x7f é ☃'
  assert tokenizer.encode(text).tolist() == list(text.encode())
  with open(toy.data.input) as file:
    for line in file:
      messages = json.loads(line)['messages']
      turns = tokenizer.template.render_with_mask(messages)
      ids, counts = tokenizer.encode_chat(turns)
      assert len(ids) <= toy.data.seq_len  # None is cut.
      answers = [m['content'] for m in messages if m['role'] == 'assistant']
      assert tokenizer.decode(ids[counts]) == ''.join(answers)


@functools.cache
def _loss(config):
  return jax.jit(lambda *args: gradients.loss_and_grads(config, *args)[0])


@pytest.mark.parametrize('mutant', [False, True])
def test_loss_is_the_mean_over_what_counts(mutant):
  """With a head of zeros the bias alone says what a token costs."""
  model = config_lib.ModelConfig(
    num_layers=1, d_model=8, num_heads=2, num_kv_heads=1, head_dim=4,
    num_experts=2, d_expert=8, d_router=4, vocab_size=11, dtype='float32',
    tie_embeddings=False, head_bias=True, scan_layers='false',
  )  # fmt: skip
  params, buffers = tiny.arrays(model)
  bias = np.linspace(-1, 1, 11).astype(np.float32)
  params |= {'head': np.zeros_like(params['head']), 'head_bias': bias}
  rng = np.random.default_rng(0)
  targets = rng.integers(0, 11, (8, 6)).astype(np.int32)
  weights = (rng.random((8, 6)) < 0.3).astype(np.float32)
  batch = {
    'tokens': targets,
    'targets': targets,
    'weights': np.ones_like(weights) if mutant else weights,
    'segment_ids': np.ones_like(targets),
    'positions': np.tile(np.arange(6, dtype=np.int32), (8, 1)),
  }
  nats = np.log(np.exp(bias.astype(np.float64)).sum()) - bias[targets]
  expected = (nats * weights).sum() / weights.sum()
  for parts in (1,) if mutant else (1, 4):
    config = config_lib.Config(
      model=model,
      data=config_lib.DataConfig(batch_size=8),
      optim=config_lib.OptimConfig(accumulation=parts),
    )
    loss = _loss(config)(params, buffers, batch)
    assert (abs(loss - expected) < 1e-5) != mutant
