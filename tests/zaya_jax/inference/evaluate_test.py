# SPDX-License-Identifier: Apache-2.0
"""Scores are checked against float64 and against what training reports."""

import json
import math
import pathlib
import shutil
import sys
import types

import numpy as np
import pytest
import safetensors.numpy
import tokenizers

import zaya_jax
from pipelines import loader
from pipelines import tokenizer as tokenizer_lib
from tests.support import folders, quick, runs, tiny
from tests.support.reference import ours, zaya_numpy
from zaya_jax import hub, main
from zaya_jax.checkpoint import errors
from zaya_jax.data import held_out, prepare
from zaya_jax.inference import evaluate

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / 'golden' / 'plain'
WORDS = ['<pad>', '<eos>', '<bos>', 'one', 'two', 'three', 'four', 'five']


@pytest.fixture
def hf_folder(tmp_path):
  """A Hugging Face folder with a tokenizer of a few words."""
  folder = tmp_path / 'model'
  shutil.copytree(GOLDEN, folder)
  vocabulary = {word: i for i, word in enumerate(WORDS)}
  inner = tokenizers.Tokenizer(
    tokenizers.models.WordLevel(vocabulary, unk_token='<pad>')
  )
  inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
  inner.add_special_tokens(WORDS[:3])
  inner.save(str(folder / 'tokenizer.json'))
  return str(folder)


def run(capsys, **settings):
  data = zaya_jax.DataConfig(
    seq_len=8, batch_size=8, **settings.pop('data', {})
  )
  config = zaya_jax.Config(mode='eval', data=data, **settings)
  capsys.readouterr()
  evaluate.main(config)
  out, told = capsys.readouterr()
  return json.loads(out) | {'told': told}


def test_text_is_scored_as_by_the_specification(hf_folder, tmp_path, capsys):
  (tmp_path / 'text').write_text('two five one one four')
  found = run(
    capsys,
    source=hf_folder,
    eval=zaya_jax.EvalConfig(text=str(tmp_path / 'text')),
  )
  tokens = np.array([2, 4, 7, 3, 3, 6])  # After <bos>.
  model = ours.load(hf_folder)
  logits = zaya_numpy.forward(
    model.config, model.params, model.buffers, tokens
  ).logits[:-1]
  log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  nats = -log_probs[np.arange(5), tokens[1:]].sum()
  assert (found['tokens'], found['bytes']) == (5, 21)
  assert 'note: scored in windows of 8 tokens' in found['told']
  np.testing.assert_allclose(found['nll'], nats / 5, rtol=1e-5)
  np.testing.assert_allclose(
    found['bits_per_byte'], nats / math.log(2) / 21, rtol=1e-5
  )


def test_run_gives_the_number_that_training_reported(tmp_path, capsys):
  rows = [
    f'{{"text": "What is held out is document {i}."}}\n' for i in range(99)
  ]
  (tmp_path / 'text.jsonl').write_text(''.join(rows))
  zaya_jax.train(
    zaya_jax.Config(
      run_dir=str(tmp_path / 'run'),
      num_steps=2,
      model=zaya_jax.ModelConfig(
        num_layers=1,
        d_model=16,
        head_dim=8,
        d_expert=8,
        num_experts=2,
        scan_layers='false',
      ),
      data=zaya_jax.DataConfig(
        input=str(tmp_path / 'text.jsonl'),
        seq_len=128,
        batch_size=8,
        val_fraction=0.2,
        mask_documents=False,
      ),
      # The optimizer that compiles soonest: it is not what is tested.
      optim=zaya_jax.OptimConfig(name='adamw', balance='adam'),
      mesh=zaya_jax.MeshConfig(replica=2),
      log=zaya_jax.LogConfig(tensorboard=False, report=False, sample_every=0),
    )
  )
  lines = (tmp_path / 'run' / 'metrics.jsonl').read_text().splitlines()
  reported = [json.loads(line) for line in lines if 'val/bpb' in line][-1]
  (tmp_path / 'run').rename(tmp_path / 'moved')
  found = run(capsys, source=str(tmp_path / 'moved'))
  np.testing.assert_allclose(
    found['bits_per_byte'], reported['val/bpb'], rtol=1e-6
  )
  np.testing.assert_allclose(found['nll'], reported['val/loss'], rtol=1e-6)
  words = [f'--source={tmp_path / "moved"}', '--data.mask_documents', '--json']
  assert main.main(['zaya_jax', '--mode=eval', *words]) == 0
  masked = json.loads(capsys.readouterr().out)
  assert masked['tokens'] == found['tokens']
  assert abs(masked['nll'] - found['nll']) > 1e-5
  shards = str(tmp_path / 'moved' / 'data')
  with pytest.raises(zaya_jax.UsageError, match='has 259 different tokens'):
    run(capsys, source=str(GOLDEN), data={'dir': (shards,)})


def test_windows_of_a_run_are_as_trained_unless_a_flag_is_given(
  tmp_path, capsys
):
  (tmp_path / 'text').write_text('A text of more than one window of eight.')

  def score(name, *words):
    words = [f'--source={tmp_path / name}', *words]
    words += ['--mode=eval', f'--eval.text={tmp_path / "text"}']
    capsys.readouterr()
    code = main.main(['zaya_jax', *words])
    out, err = capsys.readouterr()
    return code, out, err

  shape = tiny.config(vocab_size=260)
  for name, seq_len in {'wide': 48, 'narrow': 8}.items():
    run = runs.save(tmp_path / name, shape)
    data = zaya_jax.DataConfig(seq_len=seq_len, record_tokens=48, batch_size=1)
    trained = zaya_jax.Config(model=shape, data=data)
    (run / 'config.flags').write_text(trained.to_flagfile())
  narrow = score('narrow')
  assert narrow[0] == 0 and 'windows of 8 tokens' in narrow[2]
  assert score('wide', '--data.seq_len=8') == narrow
  code, out, err = score('wide', '--data.seq_len=128')
  assert (code, out) == (2, '')
  assert '--data.seq_len=128 does not divide --data.record_tokens=48' in err


def test_nothing_to_score_is_said(hf_folder, capsys):
  with pytest.raises(zaya_jax.UsageError, match='--eval.text=FILE'):
    run(capsys, source=hf_folder)


def test_text_that_cannot_be_scored_is_named(hf_folder, tmp_path, capsys):
  text = tmp_path / 'text'
  scored = {'eval': zaya_jax.EvalConfig(text=str(text))}
  with pytest.raises(zaya_jax.UsageError, match='cannot be read'):
    run(capsys, source=hf_folder, **scored)
  text.write_bytes(b'\xff')
  with pytest.raises(zaya_jax.UsageError, match='cannot be read'):
    run(capsys, source=hf_folder, **scored)
  with pytest.raises(zaya_jax.UsageError, match='without a tokenizer'):
    run(capsys, source=str(GOLDEN), **scored)
  text.write_text('')
  with pytest.raises(zaya_jax.UsageError, match='is empty'):
    run(capsys, source=hf_folder, **scored)


def test_loss_that_is_no_number_is_refused(hf_folder, tmp_path, capsys):
  (tmp_path / 'text').write_text('two five one one four')
  file = pathlib.Path(hf_folder, 'model.safetensors')
  tensors = safetensors.numpy.load_file(file)
  tensors['model.norm.weight'] = tensors['model.norm.weight'] * 1e38
  safetensors.numpy.save_file(tensors, file, {'format': 'pt'})
  scored = {'eval': zaya_jax.EvalConfig(text=str(tmp_path / 'text'))}
  with pytest.raises(errors.CheckpointError, match='a loss of nan') as error:
    run(capsys, source=hf_folder, **scored)
  assert error.value.exit_code == 3


def test_tasks_need_the_harness_and_nothing_else(hf_folder, monkeypatch):
  for name in ('lm_eval', 'zaya_jax.inference.harness'):
    monkeypatch.setitem(sys.modules, name, None)  # As if not installed.
  monkeypatch.delattr(hub, 'harness', raising=False)
  asked = zaya_jax.EvalConfig(tasks=('any',))
  with pytest.raises(zaya_jax.UsageError, match='pip install lm-eval') as error:
    evaluate.main(zaya_jax.Config(mode='eval', source=hf_folder, eval=asked))
  assert error.value.exit_code == 2
  asked = zaya_jax.EvalConfig(tasks=('any',), text='some.txt')
  with pytest.raises(zaya_jax.UsageError, match='two evaluations'):
    evaluate.main(zaya_jax.Config(mode='eval', source=hf_folder, eval=asked))


def test_mixture_is_scored_by_its_weights(hf_folder, tmp_path, capsys):
  def shards(name, text):
    (tmp_path / 'text.txt').write_text(text * 60)
    settings = {'tokenizer': hf_folder, 'record_tokens': 64, 'seq_len': 8}
    settings['val_fraction'] = 0.1
    data = zaya_jax.DataConfig(input=str(tmp_path / 'text.txt'), **settings)
    prepare.shards(data, str(tmp_path / name))
    return str(tmp_path / name)

  a, b = shards('a', 'one two three '), shards('b', 'five five four five ')
  of_a, of_b, both = (
    run(capsys, source=hf_folder, data={'dir': dirs})
    for dirs in ((a,), (b,), (f'{a}@3', b))
  )
  assert set(both) - set(of_a) == {'bits_per_byte/a', 'bits_per_byte/b'}
  for name in ('bits_per_byte', 'nll'):
    assert of_a[name] != of_b[name]
    expected = (3 * of_a[name] + of_b[name]) / 4
    np.testing.assert_allclose(both[name], expected, rtol=1e-6)
  assert both['bits_per_byte/b'] == pytest.approx(of_b['bits_per_byte'])
  assert both['tokens'] == of_a['tokens'] + of_b['tokens']


def test_folder_without_windows_of_this_length_is_left_out_and_told(capsys):
  data = lambda size: types.SimpleNamespace(
    splits={'val': types.SimpleNamespace(tokens=960)}, record_tokens=size
  )
  found = [
    held_out.HeldOut(directory=name, name=name, weight=1.0, data=data(size))
    for name, size in (('web', 64), ('sums', 96))
  ]
  assert evaluate._that_fit(found, 64) == found[:1]
  assert 'sums is not evaluated here: no window' in capsys.readouterr().err
  with pytest.raises(zaya_jax.UsageError, match='score web in others with --d'):
    evaluate._that_fit(found, 50)


def test_a_phase_without_windows_to_score_says_which_lengths_there_are(
  tmp_path, capsys
):
  """A run whose last phase reads another folder than is held out of."""
  shape = tiny.config(vocab_size=260)
  (tmp_path / 'text').write_text('What is held out is the tail. ' * 40)
  for name, size, held_out_of in (('web', 64, 0.0), ('sums', 96, 0.2)):
    data = zaya_jax.DataConfig(
      input=str(tmp_path / 'text'), record_tokens=size, seq_len=32,
      val_fraction=held_out_of,
    )  # fmt: skip
    prepare.shards(data, str(tmp_path / name))
  run = runs.save(tmp_path / 'run', shape)
  data = zaya_jax.DataConfig(
    seq_len=64, record_tokens=64, batch_size=2,
    dir=(str(tmp_path / 'web'), str(tmp_path / 'sums')),
  )  # fmt: skip
  trained = zaya_jax.Config(model=shape, data=data)
  (run / 'config.flags').write_text(trained.to_flagfile())
  ask = ['zaya_jax', '--mode=eval', f'--source={run}']
  capsys.readouterr()
  assert main.main(ask) == 2
  told = capsys.readouterr().err
  assert 'No held-out text has windows of 64 tokens' in told
  (words,) = [line for line in told.splitlines() if '--data.seq_len=' in line]
  more = [w.rstrip(',') for w in words.split() if '--data.' in w and '=' in w]
  assert more == ['--data.seq_len=48', '--data.record_tokens=96']
  assert main.main([*ask, *more]) == 0
  assert json.loads(capsys.readouterr().out)['tokens'] > 0


@pytest.mark.parametrize('layout', quick.only(('native', 'legacy'), 'native'))
def test_shards_are_scored_by_either_layout(tmp_path, capsys, layout):
  """Long: the first release; legacy_test compares its logits."""
  shape = folders.model()
  source = folders.write(
    tmp_path / 'model', layout, folders.tensors(shape, layout), shape
  )
  tokenizer = tokenizer_lib.load('bytes').to_json()
  (tmp_path / 'model' / 'tokenizer.json').write_bytes(tokenizer)
  (tmp_path / 'text.txt').write_text('What is held out is the tail. ' * 50)
  shards = str(tmp_path / 'shards')
  prepare.shards(
    zaya_jax.DataConfig(
      input=str(tmp_path / 'text.txt'),
      tokenizer=source,
      record_tokens=64,
      seq_len=8,
    ),
    shards,
  )
  found = run(capsys, source=source, data={'dir': (shards,)})
  model, nats, tokens = zaya_jax.load(source), 0.0, 0
  for batch in loader.eval_batches(shards, seq_len=8, batch_size=8):
    logits = model(
      batch['tokens'],
      segment_ids=batch['segment_ids'],
      positions=batch['positions'],
    )
    logits = np.asarray(logits, np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    targets = batch['targets'][..., None]
    picked = np.take_along_axis(log_probs, targets, -1)[..., 0]
    nats -= (picked * batch['weights']).sum()
    tokens += batch['weights'].sum()
  assert found['tokens'] == tokens > 8
  np.testing.assert_allclose(found['nll'], nats / tokens, rtol=1e-5)
  np.testing.assert_allclose(
    found['bits_per_byte'], nats / math.log(2) / found['bytes'], rtol=0.02
  )
