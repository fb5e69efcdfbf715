# SPDX-License-Identifier: Apache-2.0
"""Paths and mesh are checked by flags alone; a folder is not a file."""

import pytest

from zaya_jax import config as config_lib
from zaya_jax import main
from zaya_jax.config import checks

MODEL = 'name a run directory, a checkpoint or a Hugging Face folder.'


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
  """A working directory with a file, a folder and a run."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'file').write_text('text')
  for folder in ('folder', 'run/checkpoints/3', 'run/data', 'a,b', 'c@2'):
    (tmp_path / folder).mkdir(parents=True)
  return tmp_path


def _check(*words):
  checks.check(config_lib.Config.parse(words))


@pytest.mark.parametrize(
  'words, sentence',
  [
    ('', '--mode=train needs --run_dir=PATH.'),
    ('--mode=supervise', '--mode=supervise needs --run_dir=PATH.'),
    ('--mode=eval', '--mode=eval needs --source=PATH (or --run_dir=PATH).'),
    ('--mode=generate', 'needs --source=PATH (or --run_dir=PATH).'),
    ('--mode=checkpoints', 'needs --source=PATH (or --run_dir=PATH).'),
    ('--mode=report', 'needs --source=PATH (or --run_dir=PATH).'),
    (
      '--mode=export --source=run',
      'needs --source=PATH (or --run_dir=PATH) and --output=PATH.',
    ),
    (
      '--mode=import --run_dir=folder --output=new',
      '--mode=import needs --source=PATH and --output=PATH.',
    ),
    ('--mode=prepare --output=new', '--mode=prepare needs --data.input=PATH '),
    ('--mode=prepare --data.input=file', 'and --output=PATH (or --data.dir='),
    ('--run_dir=new', '--data.input= and --data.dir= are both empty;'),
    ('--run_dir=new --data.input=none', '--data.input=none does not exist;'),
    ('--run_dir=new --data.input=none*', '--data.input=none* does not exist;'),
    ('--run_dir=new --data.dir=none', '--data.dir=none does not exist;'),
    ('--run_dir=new --data.dir=file', '--data.dir=file is not a folder;'),
    ('--run_dir=new --data.dir=folder,none@2', '--data.dir=none does not exis'),
    ('--run_dir=run --data.tokenizer=none', '--data.tokenizer=none does not e'),
    (
      '--run_dir=new --data.input=file --restore=none',
      f'--restore=none does not exist; {MODEL}',
    ),
    ('--run_dir=file/run --data.input=file', 'file is not a folder; choose'),
    ('--run_dir=file --data.input=file', '--run_dir=file cannot be written: '),
    ('--mode=import --source=folder --output=file/new', '--output=file/new c'),
    ('--mode=eval --source=none', f'--source=none does not exist; {MODEL}'),
    ('--mode=eval --source=file', f'--source=file is not a folder; {MODEL}'),
    ('--mode=eval --run_dir=none', f'--run_dir=none does not exist; {MODEL}'),
    ('--mode=eval --source=run --eval.text=none', '--eval.text=none does not'),
    ('--mode=eval --source=run --eval.text=run', '--eval.text=run is not a fi'),
    ('--mode=eval --source=run --eval.task_dir=file', 'is not a folder'),
    ('--mode=generate --source=run --generate.prompts=none', '.prompts=none'),
    ('--mode=checkpoints --source=run --checkpoint.other=none', '.other=none '),
    ('--mode=import --source=none --output=new', '--source=none does not ex'),
    ('--mode=conform --source=none', '--source=none does not exist;'),
    ('--mode=report --source=run,none', '--source=none does not exist;'),
    ('--mode=plan --output=a.txt', '--output=a.txt must end in .json or .svg '),
    ('--mode=plan --output=a.svg,b.txt', 'must end in .json or .svg'),
    ('--mode=plan --output=file/a.svg', '--output=file/a.svg cannot be writt'),
    ('--mode=bench --output=a.txt', 'must end in .json for --mode=bench.'),
    (
      '--run_dir=run --mesh.fsdp=3',
      '--data.batch_size=16 must be a multiple of 3: 3 groups of devices times '
      '--optim.accumulation=1; for example 15, or use fewer devices.',
    ),
    (
      '--run_dir=run --mesh.replica=2 --mesh.fsdp=16',
      'must be a multiple of 32',
    ),
    (
      '--run_dir=run --mesh.expert=16',
      '--mesh.expert=16 does not divide --model.num_experts=8; choose one of '
      '[1, 2, 4, 8].',
    ),
    (
      '--run_dir=run --mesh.context=3',
      '--mesh.context=3 cuts a sequence into 6 equal chunks and --data.seq_len='
      '256 is no multiple of 6; change either.',
    ),
    ('--checkpoint.seal_key_file=none --mode=plan', 'seal_key_file=none does '),
  ],
)
def test_path_that_cannot_serve_is_refused(words, sentence):
  with pytest.raises(config_lib.UsageError) as caught:
    _check(*words.split())
  assert sentence in str(caught.value)


@pytest.mark.parametrize(
  'words',
  [
    '--run_dir=new --data.input=stdlib',
    '--run_dir=new --data.input=f*',
    '--run_dir=new --data.dir=made_here,folder@0.5 --data.input=file',
    '--run_dir=new --data.dir=c@2',
    # The text and the source of a run that goes on may be gone.
    '--run_dir=run --data.input=none --restore=none',
    '--mode=eval --run_dir=run',
    '--run_dir=run --data.seq_len=33 --data.record_tokens=33',
    '--run_dir=run --restore=folder --mesh.expert=16',
    '--run_dir=run --mesh.expert=8 --mesh.context=128 --mesh.replica=2',
    '--mode=eval --source=run --run_dir=none --data.input=none',
    '--mode=eval --source=run --eval.text=/dev/stdin',
    '--mode=report --source=a,b',
    '--mode=report --source=run,folder --output=new/page.html',
    '--mode=plan --output=new/a.svg,new/a.json --run_dir=new',
    '--mode=supervise --drill=all',
    '--mode=supervise --aegis.replay=run/incidents.jsonl',
    '--mode=conform',
  ],
)
def test_path_that_serves_is_taken(words):
  _check(*words.split())


def test_every_mode_has_its_line():
  assert set(checks._MODES) == set(main._MODES)
