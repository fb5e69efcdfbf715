# SPDX-License-Identifier: Apache-2.0
"""Import from the command line: what it writes, refuses, and is good for."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import zaya_jax
from pipelines import tokenizer
from tests.support import folders
from zaya_jax import config as config_lib
from zaya_jax import main
from zaya_jax.checkpoint.reading import lazy
from zaya_jax.hub import folder as hub_folder

ROOT = pathlib.Path(__file__).parents[3]
TEXT = 'How vexingly quick daft zebras jump. ' * 60
BPE = tokenizer.train_bpe([TEXT], 300)
BPE_LARGE = tokenizer.train_bpe(
  [' '.join(f'{i:x}{i * 7919:x}' for i in range(3000))], 400
)
MODEL = folders.model(vocab_size=320)


@pytest.fixture
def run(capsys):
  """A function: flags -> exit code, stdout, stderr."""

  def call(*args):
    capsys.readouterr()
    code = main.main(['zaya_jax', *map(str, args)])
    return code, *capsys.readouterr()

  return call


@pytest.fixture(
  params=['native', pytest.param('legacy', marks=pytest.mark.long)]
)
def folder(request, tmp_path):
  """A Hugging Face folder in shards, with a tokenizer and its settings."""
  path = tmp_path / 'hf'
  values = folders.tensors(MODEL, request.param)
  folders.write(path, request.param, values, MODEL, shards=3)
  BPE.save(path)
  (path / 'generation_config.json').write_text('{"eos_token_id": [2, 9]}')
  (path / 'chat_template.jinja').write_text('{{ messages }}')
  return path


def imported(run, folder, *args):
  output = folder.parent / 'run'
  code, out, err = run(
    '--mode=import', f'--source={folder}', f'--output={output}', *args
  )
  assert (code, err) == (0, ''), err
  return output, out


def test_run_holds_the_tensors_as_they_were(run, folder):
  output, out = imported(run, folder)
  assert out.endswith(f'imported {folder} to {output}\n')
  direct, found = zaya_jax.load(str(folder)), zaya_jax.load(str(output))
  assert found.config == direct.config
  jax.tree.map(np.testing.assert_array_equal, found.params, direct.params)
  jax.tree.map(np.testing.assert_array_equal, found.buffers, direct.buffers)
  assert found.stop_ids == direct.stop_ids == (2, 9)
  assert found.tokenizer.sha256 == BPE.sha256
  leaves = lazy.leaves(str(output / 'checkpoints/0'))
  kinds = {leaf.dtype for leaf in leaves.values()}
  assert kinds == {np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)}
  assert not (folder.parent / 'run.partial').exists()
  for name in (*hub_folder.KEPT, 'config.json'):
    kept = hub_folder.KEPT_CONFIG if name == 'config.json' else name
    if (folder / name).exists():
      assert (output / kept).read_bytes() == (folder / name).read_bytes()


def test_layout_decides_about_the_skip_class_and_says_so(run, folder):
  output, out = imported(run, folder)
  legacy = 'zaya_use_mod' in (folder / 'config.json').read_text()
  found = config_lib.Config.from_flagfile(
    str(output / 'config.flags')
  ).model.skip
  assert found == ('identity' if legacy else 'zero')
  assert ('note: tokens of the skip class' in out) == legacy


def test_imported_run_is_scored_sampled_and_trained(run, folder):
  output, _ = imported(run, folder, '--data.seq_len=32', '--data.batch_size=4')
  text = folder.parent / 'text.txt'
  text.write_text(TEXT)
  scores = []
  sizes = '--data.seq_len=32', '--data.batch_size=4'
  for source in (folder, output):
    code, out, _ = run(
      '--mode=eval', f'--source={source}', f'--eval.text={text}', *sizes
    )
    assert code == 0
    scores.append(json.loads(out))
  assert scores[0] == scores[1]
  code, out, _ = run(
    *('--mode=generate', f'--source={output}', '--prompt=How'),
    '--generate.max_tokens=2',
  )
  assert code == 0 and out.startswith('How')


def test_training_starts_from_folder_and_from_import(run, folder):
  direct = 'zaya_use_mod' in (folder / 'config.json').read_text()
  output, _ = imported(run, folder, '--data.seq_len=32', '--data.batch_size=4')
  text = folder.parent / 'text.txt'
  text.write_text(TEXT)
  source, run_dir = folder if direct else output, folder.parent / 'trained'
  common = (
    *(f'--flagfile={output}/config.flags', f'--data.input={text}'),
    *('--data.record_tokens=64', '--data.val_fraction=0', '--num_steps=1'),
    *('--optim.name=adamw', '--optim.lr=0', '--optim.lr_final=0'),
    *('--optim.balance_lr=0', '--nolog.tensorboard', '--mesh.replica=1'),
    '--generate.max_tokens=1',
  )
  code, out, err = run(*common, f'--run_dir={run_dir}', f'--restore={source}')
  assert code == 0, err
  assert f'parameters of {source}' in out and 'changed' not in out
  assert (run_dir / hub_folder.KEPT_CONFIG).exists()
  wanted, found = zaya_jax.load(str(folder)), zaya_jax.load(str(run_dir))
  jax.tree.map(np.testing.assert_array_equal, found.params, wanted.params)
  jax.tree.map(np.testing.assert_array_equal, found.buffers, wanted.buffers)
  code, _, err = run(*common)  # In the folder of the import itself.
  assert code == 2 and f'with --restore={output}' in err


def test_restored_model_must_be_that_of_the_flags(run, folder):
  output, _ = imported(run, folder, '--data.seq_len=32', '--data.batch_size=4')
  text = folder.parent / 'text.txt'
  text.write_text(TEXT)
  code, _, err = run(
    f'--flagfile={output}/config.flags', f'--run_dir={folder.parent}/c',
    f'--restore={folder}', f'--data.input={text}', '--data.record_tokens=64',
    '--model.d_expert=16', '--mesh.replica=1',
  )  # fmt: skip
  assert code == 2
  assert 'is another model' in err and '--model.d_expert=16 (there: 8)' in err


@pytest.mark.parametrize(
  ('damage', 'code', 'message'),
  [
    (lambda f: os.remove(f / 'config.json'), 3, 'config.json cannot be read'),
    (lambda f: (f / 'config.json').write_text('[]'), 3, 'not a JSON object'),
    (lambda f: (f / 'config.json').write_text('{'), 3, 'cannot be read'),
    (lambda f: os.remove(f / 'model-1.safetensors'), 3, 'is missing'),
    (
      lambda f: os.truncate(f / 'model-1.safetensors', 2000),
      3,
      'model-1.safetensors cannot be read',
    ),
    (
      lambda f: BPE_LARGE.save(f),
      3,
      'the model 320',
    ),
    (
      lambda f: (f / 'tokenizer.json').write_text('{'),
      3,
      'error: {hf}/tokenizer.json is not a tokenizer.json',
    ),
    (
      lambda f: (f / 'tokenizer.json').write_text('{"model": {"vocab": 1}}'),
      3,
      'error: {hf}/tokenizer.json is not a tokenizer.json',
    ),
    (
      lambda f: (f / 'generation_config.json').write_text(
        '{"eos_token_id": "x"}'
      ),
      3,
      "eos_token_id is 'x'",
    ),
    (
      lambda f: (f / 'special_tokens_map.json').symlink_to('/etc/hosts'),
      3,
      'leads out of the folder',
    ),
    (lambda f: shutil.rmtree(f), 2, 'does not exist'),
    (lambda f: (f.parent / 'run').write_text(''), 2, 'exists already'),
    (lambda f: (f.parent / 'run/x').mkdir(parents=True), 2, 'exists already'),
    (lambda f: (f.parent / 'run.partial').mkdir(), 2, 'is in the way'),
  ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(
  run, folder, damage, code, message
):
  damage(folder)
  before = sorted(folder.parent.rglob('*'))
  found = run(
    '--mode=import', f'--source={folder}', f'--output={folder.parent}/run'
  )
  assert found[0] == code
  message = message.replace('{hf}', str(folder))
  assert message in found[2] and found[2].count('\n') == 1
  assert sorted(folder.parent.rglob('*')) == before


def _change(folder, **changes):
  """Writes one shard anew, with other tensors in it."""
  path = folder / 'model-0.safetensors'
  values = safetensors.numpy.load_file(path)
  name = sorted(n for n in values if n.endswith('weight'))[0]
  index = json.loads((folder / 'model.safetensors.index.json').read_text())
  for key, value in changes.items():
    values[key if key == 'odd' else name] = value(values[name])
    index['weight_map'][key if key == 'odd' else name] = path.name
  safetensors.numpy.save_file(values, path)
  (folder / 'model.safetensors.index.json').write_text(json.dumps(index))


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'shape': lambda w: np.ascontiguousarray(w[:-1])}, 'has shape'),
    ({'kind': lambda w: w.astype(np.int8)}, 'is of type int8'),
    ({'kind': lambda w: w.astype(np.float64)}, 'is of type F64'),
    ({'odd': lambda w: w}, 'does not explain, such as odd'),
    ({'nan': lambda w: w * np.array(np.nan, w.dtype)}, 'holds NaN or Inf in p'),
    ({'inf': lambda w: w / np.zeros((), w.dtype)}, 'holds NaN or Inf in p'),
  ],
)
@pytest.mark.filterwarnings('ignore:.*encountered in.*:RuntimeWarning')
def test_tensor_of_another_kind_is_named(run, folder, changes, message):
  _change(folder, **changes)
  code, _, err = run(
    '--mode=import', f'--source={folder}', f'--output={folder.parent}/run'
  )
  assert code == 3 and message in err and err.count('\n') == 1
  assert sorted(os.listdir(folder.parent)) == ['hf']


def test_pickles_are_refused(run, tmp_path):
  folder = tmp_path / 'hf'
  values = folders.tensors(MODEL, 'native')
  folders.write(folder, 'native', values, MODEL)
  (folder / 'model.safetensors').rename(folder / 'pytorch_model.bin')
  output = f'--output={tmp_path}/run'
  code, _, err = run('--mode=import', f'--source={folder}', output)
  assert code == 3 and 'pickled' in err and 'safetensors' in err
  with pytest.raises(ValueError, match='pickled'):
    zaya_jax.load(str(folder))


def test_little_space_is_noticed_before_anything_is_written(
  run, folder, monkeypatch
):
  usage = shutil.disk_usage('.')._replace(free=1000)
  monkeypatch.setattr(shutil, 'disk_usage', lambda _: usage)
  code, _, err = run(
    '--mode=import', f'--source={folder}', f'--output={folder.parent}/run'
  )
  assert code == 3 and '1,000 are free' in err
  assert os.listdir(folder.parent) == ['hf']


def test_disk_that_fills_up_is_one_sentence_and_leaves_nothing(folder):
  # -B: Python must not leave a part of a compiled module for others to load.
  command = f'{sys.executable} -B -m zaya_jax.main --mode=import'
  done = subprocess.run(
    # A file of the run cannot grow beyond 8 KiB.
    f'ulimit -f 8; {command} --source={folder} --output={folder.parent}/run',
    shell=True,
    executable='/bin/bash',
    capture_output=True,
    text=True,
    check=False,
    cwd=ROOT,
    timeout=120,
  )
  assert done.returncode == 3, done.stderr
  assert 'make room' in done.stderr and 'Traceback' not in done.stderr
  assert os.listdir(folder.parent) == ['hf']


def test_what_a_killed_import_left_is_replaced(run, folder):
  partial = folder.parent / 'run.partial'
  partial.mkdir()
  (partial / '.lock').write_text('host pid 1')
  (partial / '.aside').touch()
  (partial / 'checkpoints').mkdir()
  (partial / 'checkpoints' / 'old').write_text('')
  (partial / 'special_tokens_map.json').write_text('{}')
  output, _ = imported(run, folder)
  assert not (output / 'checkpoints' / 'old').exists()
  assert not (output / 'special_tokens_map.json').exists()


def test_tied_model_in_float32_survives(run, tmp_path):
  model = folders.model(tie_embeddings=True, head_bias=False)
  values = {
    name: value.astype(np.float32)
    for name, value in folders.tensors(model, 'native').items()
  }
  values['lm_head.weight'] = values['model.embed_tokens.weight'].copy()
  folder = tmp_path / 'hf'
  folders.write(folder, 'native', values, model)
  output, _ = imported(run, folder)
  found = zaya_jax.load(str(output))
  assert 'head' not in found.params and found.tokenizer is None
  np.testing.assert_array_equal(
    found.params['embed'], values['model.embed_tokens.weight']
  )
  assert found.config == config_lib.ModelConfig(
    **{**vars(model), 'dtype': 'auto'}
  )
