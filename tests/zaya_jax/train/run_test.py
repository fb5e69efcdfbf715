# SPDX-License-Identifier: Apache-2.0
"""Training from the command line: runs, stops, kills, resumes, refusals.

Programs of their own where a process must end; main.main otherwise.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests.support import compiled, tiny
from zaya_jax import config as config_lib
from zaya_jax import main
from zaya_jax.checkpoint import lock
from zaya_jax.inference import load as load_lib
from zaya_jax.metrics import reporter
from zaya_jax.model import flops

ROOT = pathlib.Path(__file__).parents[3]
QUICKSTART = ROOT / 'configs' / 'quickstart.flags'
TEXT = ''.join(
  f'{i} times {j} is {i * j}.\n' for i in range(30) for j in range(30)
)
SETTINGS = [*tiny.FLAGS, *"""
--num_steps=30
--data.batch_size=4
--optim.lr=1e-2
--optim.warmup_steps=3
--checkpoint.every=12
--log.every=5
--eval.batches=2
--generate.max_tokens=4
--prompt=1
""".split()]  # fmt: skip

ONE = '--mesh.replica=1'  # This process has eight devices, others have one.

# Kills itself after a step, once a checkpoint is complete.
KILLED = """
import os, signal, sys, time
from zaya_jax import main
from zaya_jax.metrics import reporter
_, at, complete, *args = sys.argv
push = reporter.Reporter.push
def push_and_kill(self, step, *args, **kwargs):
  push(self, step, *args, **kwargs)
  if step == int(at):
    while not os.path.exists(complete):
      time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
reporter.Reporter.push = push_and_kill
sys.exit(main.main(['zaya_jax', *args]))
"""


def python(*args):
  """Runs a program on one device."""
  environment = {**os.environ, 'XLA_FLAGS': os.environ['XLA_FLAGS']}
  environment['XLA_FLAGS'] += ' --xla_force_host_platform_device_count=1'
  return subprocess.run(
    [sys.executable, *args],
    capture_output=True,
    text=True,
    check=False,
    cwd=ROOT,
    env=environment,
    timeout=900,  # It hangs; other programs may slow it.
  )


@pytest.fixture(scope='module', autouse=True)
def kept_programs(tmp_path_factory):
  """What a child compiles is kept for the next, as between runs of a user."""
  folder = tmp_path_factory.mktemp('compiled')
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('JAX_COMPILATION_CACHE_DIR', str(folder))
    yield folder


@pytest.fixture(scope='module', autouse=True)
def compiled_once():
  yield from compiled.once()


@pytest.fixture(scope='module')
def text(tmp_path_factory):
  path = tmp_path_factory.mktemp('text') / 'text.txt'
  path.write_text(TEXT)
  return path


@pytest.fixture(scope='module')
def straight(tmp_path_factory, text):
  """The folder of a run of 30 steps without a stop."""
  run_dir = tmp_path_factory.mktemp('runs') / 'straight'
  args = [*SETTINGS, ONE, f'--data.input={text}', f'--run_dir={run_dir}']
  assert main.main(['zaya_jax', *args]) == 0
  return run_dir


@pytest.fixture
def run(capsys):
  """A function: flags -> exit code, stdout, stderr; on one device."""

  def call(*args):
    capsys.readouterr()
    code = main.main(['zaya_jax', ONE, *map(str, args)])
    return code, *capsys.readouterr()

  return call


@pytest.fixture
def train(run, text):
  """A function that trains the tiny model in a folder; as `run`."""

  def call(run_dir, *args):
    settings = [*SETTINGS, f'--data.input={text}', '--nolog.tensorboard']
    return run(*settings, f'--run_dir={run_dir}', *args)

  return call


def listed(run, run_dir, step):
  """What --mode=checkpoints prints of one checkpoint."""
  source = run_dir / 'checkpoints' / str(step)
  code, out, _ = run('--mode=checkpoints', f'--source={source}')
  assert code == 0
  (entry,) = map(json.loads, out.splitlines())
  assert entry['valid']
  return entry


def steps_saved(run_dir):
  return sorted(map(int, os.listdir(run_dir / 'checkpoints')))


def rows(run_dir):
  lines = (run_dir / 'metrics.jsonl').read_text().splitlines()
  return [json.loads(line) for line in lines]


def test_run_learns(straight):
  losses = [row['train/loss'] for row in rows(straight) if 'train/loss' in row]
  assert losses[0] > 5.5  # About ln 320, an untrained model.
  assert losses[-1] < 4.5
  (bpb,) = [row['val/bpb'] for row in rows(straight) if 'val/bpb' in row]
  assert bpb < 4.5 / np.log(2)


def test_run_directory_has_its_files(straight):
  names = {path.name for path in straight.iterdir() if path.name[0] != '.'}
  assert names == {
    'config.flags',
    'config.json',
    'experts.jsonl',
    'ledger.jsonl',
    'log.txt',
    'metrics.jsonl',
    'plotly.min.js',
    'report.html',
    'run_id',
    'samples',
    'tensorboard',
    'checkpoints',
    'data',
  }
  assert steps_saved(straight) == [12, 24, 30]
  assert [path.name for path in (straight / 'samples').iterdir()] == [
    'step_000030.txt'
  ]
  facts = json.loads((straight / 'config.json').read_text())
  assert facts['devices'] == {'platform': 'cpu', 'kind': 'cpu', 'count': 1}
  wanted = 'train/loss optim/lr optim/grad_norm throughput/tokens_per_second'
  wanted += ' time/step_s time/data_s moe/load_max moe/load_min moe/entropy'
  row = next(row for row in rows(straight) if row['step'] == 10)
  assert {'step', 'tokens', 'moe/skip', *wanted.split()} <= set(row)


def test_auxiliary_loss_is_told_beside_that_of_the_text(
  train, straight, tmp_path
):
  code, *_ = train(tmp_path / 'even', '--optim.balance=loss', '--num_steps=5')
  assert code == 0
  mine, theirs = (
    json.loads((folder / 'metrics.jsonl').read_text().splitlines()[0])
    for folder in (tmp_path / 'even', straight)
  )
  assert mine['train/loss'] == pytest.approx(theirs['train/loss'], rel=1e-5)
  assert 1 <= mine['train/balance_loss'] < 2
  assert 'train/balance_loss' not in theirs


def test_config_flags_repeat_the_run(straight, text):
  again = config_lib.Config.from_flagfile(str(straight / 'config.flags'))
  asked = config_lib.Config.parse(
    [*SETTINGS, ONE, f'--data.input={text}', f'--run_dir={straight}']
  )
  assert again == asked


def test_stopped_and_killed_run_ends_bit_for_bit_as_the_straight_one(
  straight, text, run, kept_programs, tmp_path, monkeypatch
):
  run_dir = tmp_path / 'run'
  args = [*SETTINGS, f'--data.input={text}', f'--run_dir={run_dir}']
  args += ['--nolog.tensorboard', '--nolog.report', '--log.sample_every=0']

  push = reporter.Reporter.push

  def push_and_stop(self, step, *args, **kwargs):
    push(self, step, *args, **kwargs)
    if step == 5:
      signal.raise_signal(signal.SIGTERM)

  with monkeypatch.context() as patch:
    patch.setattr(reporter.Reporter, 'push', push_and_stop)
    code, out, error = run(*args)
  assert code == 75, error
  assert 'SIGTERM: stopped after step 5' in out
  assert steps_saved(run_dir) == [5]

  saved = str(run_dir / 'checkpoints' / '12')
  killed = python('-c', KILLED, '17', saved, *args)
  assert killed.returncode == -9, killed.stderr
  assert 'resumed at step 5' in killed.stdout
  assert steps_saved(run_dir) == [5, 12]

  resumed = python('-m', 'zaya_jax.main', *args)
  assert (resumed.returncode, resumed.stderr) == (0, '')
  assert [path for path in kept_programs.iterdir() if 'train_step' in path.name]
  assert 'resumed at step 12 (data index 48)' in resumed.stdout
  expected, found = (listed(run, d, 30) for d in (straight, run_dir))
  for name in ('params_hash', 'state_hash', 'data_index', 'tokens', 'val/bpb'):
    assert found[name] == expected[name], name
  # Or the hashes would say nothing.
  earlier = listed(run, straight, 24)
  assert earlier['params_hash'] != expected['params_hash']
  assert earlier['state_hash'] != expected['state_hash']
  steps = [row['step'] for row in rows(run_dir) if 'train/loss' in row]
  assert steps == sorted(set(steps))


def test_finished_run_has_nothing_left_to_do(straight, train):
  before = (straight / 'metrics.jsonl').read_bytes()
  code, out, _ = train(straight)
  assert code == 0 and 'resumed at step 30' in out
  assert (straight / 'metrics.jsonl').read_bytes() == before


@pytest.mark.long  # inherit_test has each case without a run.
def test_longer_run_keeps_the_schedule_unless_told(straight, train, tmp_path):
  run_dir = shutil.copytree(straight, tmp_path / 'run')

  def go_on(num_steps, *args):
    """The learning rate of the last step, and what was printed."""
    code, out, _ = train(
      run_dir,
      *args,
      f'--num_steps={num_steps}',
      '--eval.batches=1',
      '--log.sample_every=0',
    )
    assert code == 0
    row = next(row for row in rows(run_dir) if row['step'] == num_steps)
    return row['optim/lr'], out

  kept = 'schedule of 30 steps that was run and stays at 0.0002 after it'
  flags = f'--flagfile={run_dir}/config.flags'  # Has every setting.
  rate, out = go_on(35, flags, f'--run_dir={run_dir}', ONE)
  assert rate == pytest.approx(2e-4) and kept in out
  rate, out = go_on(40)  # As a supervisor does, from a checkpoint of 35 steps.
  assert rate == pytest.approx(2e-4) and kept in out
  rate, out = go_on(45, '--optim.schedule_steps=60')
  cosine = (1 + np.cos(np.pi * (44 - 3) / (60 - 3))) / 2  # After 44 steps.
  assert rate == pytest.approx(2e-4 + (1e-2 - 2e-4) * cosine, rel=1e-5)
  assert 'that was run' not in out


@pytest.mark.parametrize(
  'args, words',
  [
    (['--model.d_expert=8'], '--model.d_expert: 16 -> 8'),
    (['--model.num_layers=3', '--model.skip=off'], '--model.skip: zero -> off'),
    (['--noresume'], '--noresume is set'),
    (['--num_steps=20'], '--num_steps=20 is less than the 30 steps'),
    (['--model.vocab_size=258'], '--model.vocab_size=258 is smaller'),
    (
      ['--data.batch_size=6', '--optim.accumulation=3', '--mesh.replica=4'],
      '--data.batch_size=6 must be a multiple of 12',
    ),
    (
      ['--mesh.replica=9', '--data.batch_size=9'],
      '--mesh.replica=9 times --mesh.fsdp=1 needs as many devices',
    ),
  ],
)
def test_what_does_not_fit_the_run_is_refused_and_changes_nothing(
  straight, train, args, words
):
  def content():
    return {
      path: path.read_bytes()
      for path in straight.rglob('*')
      if path.is_file() and path.name != '.lock'
    }

  before = content()
  code, _, error = train(straight, *args)
  assert code == 2
  assert words in error and error.count('\n') == 1
  assert content() == before


def test_second_run_in_a_folder_is_refused(straight, train):
  with lock.RunLock(str(straight)):
    code, _, error = train(straight)
  assert code == 2
  assert 'is in use by' in error and error.count('\n') == 1


@pytest.mark.parametrize(
  'args, words',
  [
    (['--data.input='], '--data.input= and --data.dir= are both empty'),
    (['--data.input=nowhere.txt'], 'nowhere.txt'),
    (['--model.vocab_size=258'], 'set it to 320'),
    (['--run_dir='], '--mode=train needs --run_dir=PATH'),
    (['--restore=nowhere'], 'nowhere'),
  ],
)
def test_run_that_cannot_start_says_so_and_saves_nothing(
  train, tmp_path, args, words
):
  code, _, error = train(tmp_path / 'run', *args)
  assert code in (2, 3)
  assert words in error.splitlines()[-1] and 'Traceback' not in error
  assert not (tmp_path / 'run' / 'config.flags').exists()


@pytest.mark.long  # importer_test restores from an import and from a folder.
def test_restore_starts_a_new_run_from_old_parameters(
  straight, train, run, tmp_path
):
  code, out, _ = train(
    tmp_path / 'run',
    f'--restore={straight}',
    '--num_steps=1',
    '--optim.lr=0',
    '--optim.lr_final=0',
    '--data.val_fraction=0',
    '--log.sample_every=0',
  )
  assert code == 0
  assert f'parameters of {straight}' in out
  old, new = listed(run, straight, 30), listed(run, tmp_path / 'run', 1)
  assert new['params_hash'] == old['params_hash']
  assert new['state_hash'] != old['state_hash']
  assert new['data_index'] == 4


def test_run_that_gives_nan_ends_and_names_the_last_good_checkpoint(
  straight, train, run, tmp_path
):
  run_dir = shutil.copytree(straight, tmp_path / 'run')
  # Step 31 destroys the parameters; steps 32 to 34 give NaN.
  code, out, error = train(
    run_dir,
    '--num_steps=60',
    '--optim.lr=1e30',
    '--optim.schedule=constant',
    '--optim.max_bad_steps=3',
    '--checkpoint.every=2',
  )
  assert code == 4
  assert 'step 32 is not saved' in out
  assert '3 steps in a row were refused' in error
  assert 'there is no other device to try' in out
  lines = (run_dir / 'incidents.jsonl').read_text().splitlines()
  told = [(row['kind'], row['step']) for row in map(json.loads, lines)]
  assert told == [('refused_step', step) for step in (32, 33, 34)]
  assert f'last good checkpoint: {run_dir}/checkpoints/30.' in error
  assert steps_saved(run_dir)[-1] == 30


def generate(run, run_dir, *args):
  code, out, error = run(
    '--mode=generate',
    f'--run_dir={run_dir}',
    '--generate.max_tokens=6',
    *args,
  )
  assert code == 0, error
  return out


def test_generate_continues_a_prompt_or_what_comes_in(
  straight, run, monkeypatch, tmp_path
):
  greedy = generate(
    run, straight, '--prompt=3 times', '--generate.temperature=0'
  )
  assert greedy.startswith('3 times')
  expected = load_lib.load(str(straight)).generate('3 times', max_tokens=6)
  assert greedy == f'3 times{expected[0]}\n'
  piped = tmp_path / 'stdin'
  piped.write_text('3 times')
  with open(piped) as stdin:
    monkeypatch.setattr(sys, 'stdin', stdin)
    again = generate(run, straight, '--generate.temperature=0')
  assert again == greedy


def test_generate_follows_the_seed(straight, run):
  sampled = [
    generate(
      run, straight, '--prompt=1', '--generate.temperature=1', f'--seed={s}'
    )
    for s in (0, 0, 1, 2)
  ]
  assert sampled[0] == sampled[1]
  assert len(set(sampled)) > 1


def _model(path):
  return config_lib.Config.from_flagfile(str(path)).model


def small_presets():
  """The flagfiles whose models a laptop trains."""
  return [
    path
    for path in sorted((ROOT / 'configs').glob('*.flags'))
    if flops.parameters(_model(path)).total < 20e6
  ]


@pytest.mark.parametrize(
  'path',
  [
    pytest.param(path, marks=[] if path == QUICKSTART else [pytest.mark.long])
    for path in small_presets()
  ],
  ids=lambda path: path.stem,
)
def test_preset_makes_a_step(path, run, straight, text, tmp_path):
  # Refused without a model to go on from.
  tuned = path.stem in ('chat', 'dpo', 'finetune', 'lora')
  source = [f'--restore={straight}'] if tuned else []
  if path.stem == 'dpo':
    answers = {'chosen': 'Yes.', 'rejected': 'No.'}
    pairs = ({'prompt': f'Is {i} it?', **answers} for i in range(99))
    text = tmp_path / 'pairs.jsonl'
    text.write_text(''.join(f'{json.dumps(pair)}\n' for pair in pairs))
  code, _, error = run(
    f'--flagfile={path}',
    *source,
    f'--run_dir={tmp_path / "run"}',
    f'--data.input={text}',
    '--num_steps=1',
    '--model.num_layers=1',
    '--model.scan_layers=false',
    '--data.batch_size=2',
    f'--data.seq_len={128 if path.stem == "dpo" else 32}',
    '--eval.batches=1',
    '--generate.max_tokens=1',
    '--nolog.tensorboard',
  )
  assert code == 0, error
  assert np.isfinite(rows(tmp_path / 'run')[0]['train/loss'])


def test_quick_start_is_small_enough_for_a_step():
  assert 'quickstart' in [path.stem for path in small_presets()]
