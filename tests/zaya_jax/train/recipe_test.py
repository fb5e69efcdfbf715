# SPDX-License-Identifier: Apache-2.0
"""Training by a recipe: a run that stops anywhere ends as one that does not."""

import json
import math
import pathlib
import shutil
import subprocess
import sys

import pytest

from tests.support import compiled, tiny
from zaya_jax import main
from zaya_jax.checkpoint import meta, seal
from zaya_jax.data.ledger import mode as ledger
from zaya_jax.inference import evaluate
from zaya_jax.runtime import processes

ROOT = pathlib.Path(__file__).parents[3]
# Two phases of three steps, with another length, RoPE base, mixture and rate.
RECIPE = """
[sources]
times = {{input = "{text}/times.txt", dir = "{text}/times"}}
sums = {{input = "{text}/sums.txt", dir = "{text}/sums"}}
[[phase]]
name = "one"
tokens = 192
mixture = {{times = 0.7, sums = 0.3}}
batch = ["0:2"]
lr = {{from = 1e-2, to = 5e-3, warmup_steps = 2}}
[[phase]]
name = "two"
tokens = 380
mixture = {{sums = 1}}
lr = {{from = 2e-3, to = 0, shape = "linear", warmup = 150}}
keep = "{keep}"
flags = {{"data.seq_len" = 64, "data.batch_size" = 2, "model.rope_theta" = 1e5}}
"""
# The same in three segments, of 2 and 3 rows and of another mesh.
RAMP = {
  '["0:2"]': '["0:2", "100:3"]',
  '"model.rope_theta"': '"mesh.context" = 2, "model.rope_theta"',
}
BOUNDARIES = (2, 3)  # Steps.
# A plain run like the first phase.
PLAIN = """
--num_steps=3
--data.batch_size=2
--optim.lr=1e-2
--optim.lr_final=5e-3
--optim.schedule=cosine
--optim.warmup_steps=2
""".split()
SETTINGS = [*tiny.FLAGS, *"""
--mesh.replica=1
--model.num_layers=1
--checkpoint.every=2
--checkpoint.keep=20
--log.every=1
--log.sample_every=0
--eval.every=0
--eval.batches=1
--nolog.tensorboard
--nolog.report
""".split()]  # fmt: skip


@pytest.fixture(scope='module', autouse=True)
def compiled_once():
  yield from compiled.once()


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A folder with texts; programs are kept there, as between runs."""
  path = tmp_path_factory.mktemp('recipe')
  for name, sign in (('times', '*'), ('sums', '+')):
    rows = (f'{i} {sign} {j}; ' for i in range(40) for j in range(40))
    (path / f'{name}.txt').write_text(''.join(rows))
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('JAX_COMPILATION_CACHE_DIR', str(path / 'compiled'))
    yield path


@pytest.fixture
def recipe(folder):
  """A function: what the second phase keeps, and changes -> the file."""

  def write(keep='all', changes=None):
    path = folder / f'{keep}.toml'
    text = RECIPE.format(text=folder, keep=keep)
    for old, new in (changes or {}).items():
      assert old in text
      text = text.replace(old, new)
    path.write_text(text)
    return path

  return write


def train(recipe, run_dir, *more):
  flags = [f'--recipe={recipe}', f'--run_dir={run_dir}', *more]
  return main.main(['zaya_jax', *SETTINGS, *flags])


def stopping(monkeypatch, at):
  """The next run stops after a step, as by SIGTERM."""
  once = iter(['SIGTERM'])
  stop = lambda step, _: next(once, '') if step == at else ''
  monkeypatch.setattr(processes, 'stop_at', stop)


def state(run_dir, step):
  """The bits of all arrays of a checkpoint, and where it is in the data."""
  path = str(run_dir / 'checkpoints' / str(step))
  about = meta.read(path)
  found = seal.verified(path)['fingerprint'], about['data_index']
  return *found, about.get('phase')


def rows(run_dir):
  lines = (run_dir / 'metrics.jsonl').read_text().splitlines()
  return [row for row in map(json.loads, lines) if 'train/loss' in row]


@pytest.fixture(scope='module')
def straight(folder):
  """Folders of undisturbed runs, by the name of the recipe."""

  def run(path, name='straight'):
    found = folder / f'{name}_{path.stem}'
    if not found.exists():
      assert train(path, found) == 0
    return found

  return run


def test_a_stop_at_a_boundary_changes_nothing(
  straight, recipe, folder, monkeypatch
):
  wanted, found = straight(recipe()), folder / 'stopped'
  stopping(monkeypatch, 3)
  assert train(recipe(), found) == 75
  assert train(recipe(), found) == 0
  assert state(found, 6) == state(wanted, 6)
  losses = [[r['train/loss'] for r in rows(run)] for run in (found, wanted)]
  assert losses[0] == losses[1] and len(losses[0]) == 6


def test_the_rate_is_a_function_of_tokens(straight, recipe):
  told = rows(straight(recipe()))
  assert [row['phase'] for row in told] == 3 * ['one'] + 3 * ['two']
  tokens = [0, *(row['tokens'] for row in told)]
  assert tokens == [0, 64, 128, 192, 320, 448, 576]
  for row, before in zip(told, tokens, strict=False):
    if before + 64 < 128:
      wanted = 1e-2 * (before + 64) / 128
    elif before < 192:
      done = max(0, before - 128) / 64
      wanted = 5e-3 + 5e-3 * (1 + math.cos(math.pi * done)) / 2
    elif before - 192 < 150:
      wanted = 5e-3 - 3e-3 * (before - 192) / 150
    else:
      wanted = 2e-3 * (1 - (before - 192 - 150) / 230)
    assert row['optim/lr'] == pytest.approx(wanted, abs=1e-9)


@pytest.mark.long
def test_an_edited_past_is_refused_and_a_future_is_not(
  straight, recipe, folder, capsys
):
  run = folder / 'edited'
  shutil.copytree(straight(recipe()), run)
  for old, new, message in (
    ('0.7', '0.6', 'phase "one", mixture.times was 7/10 and is 2/3 now'),
    ('"0:2"', '"0:3"', 'phase "one", batch was 2'),
    ('1e-2', '2e-2', 'phase "one", lr.from was 0.01 and is 0.02 now'),
    ('380', '700', 'phase "two", lr.tokens was 380'),
    ('= 192', '= 250', 'phase "one", lr.tokens was 192'),
    ('1e5', '1e6', 'phase "two", flags.model.rope_theta was 1'),
  ):
    assert train(recipe('all', {old: new}), run) == 2
    assert message in capsys.readouterr().err
  assert train(recipe('params'), run) == 2
  assert 'phase "two", keep was all' in capsys.readouterr().err
  more = '\n[[phase]]\nname = "three"\ntokens = 128\nmixture = {sums = 1}\n'
  path = recipe()
  path.write_text(path.read_text() + more)
  assert train(path, run) == 0
  assert rows(run)[-1]['phase'] == 'three'
  assert 'two is done' not in capsys.readouterr().out  # It was before.
  plain = [f'--run_dir={run}', f'--data.dir={folder}/sums']
  assert main.main(['zaya_jax', *SETTINGS, *plain]) == 2
  assert 'was trained by' in capsys.readouterr().err


@pytest.mark.long
def test_a_phase_that_keeps_parameters_has_a_new_optimizer(straight, recipe):
  kept, new = (straight(recipe(keep)) for keep in ('all', 'params'))
  before = [state(run, 3)[0] for run in (kept, new)]
  assert before[0] == before[1]
  after = [state(run, 6)[0] for run in (kept, new)]
  differ = {k.split('/')[0] for k in after[0] if after[0][k] != after[1][k]}
  assert differ >= {'params', 'opt_state', 'balance_state'}
  assert 'rng' not in differ and 'step' not in differ


KILLED = """
import os, signal, sys
from zaya_jax import main
from zaya_jax.metrics import reporter
_, name, at, *args = sys.argv
push = reporter.Reporter.push
def push_and_signal(self, step, *args, **kwargs):
  push(self, step, *args, **kwargs)
  if step == int(at):
    os.kill(os.getpid(), getattr(signal, name))
reporter.Reporter.push = push_and_signal
sys.exit(main.main(['zaya_jax', *args]))
"""


@pytest.mark.long
@pytest.mark.parametrize('name', ['SIGTERM', 'SIGKILL'])
@pytest.mark.parametrize('at', [1, 2, 3, 4])
def test_a_kill_around_a_boundary_changes_nothing(
  straight, recipe, tmp_path, name, at
):
  path = recipe('params', RAMP)
  wanted = straight(path, 'ramp')
  flags = [f'--recipe={path}', f'--run_dir={tmp_path}', *SETTINGS]
  program = [sys.executable, '-c', KILLED, name, str(at), *flags]
  done = subprocess.run(program, cwd=ROOT, capture_output=True, check=False)
  assert done.returncode == (75 if name == 'SIGTERM' else -9), done.stderr
  assert train(path, tmp_path) == 0
  for step in (*BOUNDARIES, 6):
    assert state(tmp_path, step) == state(wanted, step)


def plain(folder, run_dir):
  """The exit code of a plain run of the first phase."""
  shares = f'--data.dir={folder}/times@0.7,{folder}/sums@0.3'
  flags = [*SETTINGS, *PLAIN, shares, f'--run_dir={run_dir}']
  return main.main(['zaya_jax', *flags])


@pytest.fixture
def ran(straight, recipe, folder, tmp_path):
  """A folder with a copy of a plain run of three steps."""
  found = folder / 'plain'
  straight(recipe())  # Which makes the shards.
  if not found.exists():
    assert plain(folder, found) == 0
  return shutil.copytree(found, tmp_path / 'run')


@pytest.fixture
def grown(recipe, tmp_path):
  """A function: folder of a plain run -> a recipe that begins with it."""

  def write(run):
    path = tmp_path / 'grown.toml'
    ask = ['--mode=ledger', f'--source={run}', f'--output={path}']
    assert main.main(['zaya_jax', *ask]) == 0
    first, later = path.read_text(), recipe().read_text()
    second = later.partition('name = "two"')[1:]
    path.write_text(f'{first}[[phase]]\n{"".join(second)}')
    return path

  return write


@pytest.mark.parametrize('stop', [3, pytest.param(2, marks=pytest.mark.long)])
def test_a_plain_run_goes_on_as_if_it_had_a_recipe(
  straight, recipe, grown, folder, ran, tmp_path, monkeypatch, capsys, stop
):
  """Whether it was done with its last step, or stopped on its way."""
  wanted, found = straight(recipe()), ran
  if stop < 3:
    found = tmp_path / 'stopped'
    stopping(monkeypatch, stop)
    assert plain(folder, found) == 75
  assert train(grown(found), found) == 0
  for step in (2, 3, 4, 6):  # Each that is saved.
    assert state(found, step)[:2] == state(wanted, step)[:2]
  told, others = rows(found), rows(wanted)
  for key in ('train/loss', 'optim/lr', 'tokens'):
    assert [row[key] for row in told] == [row[key] for row in others]
  assert [row.get('phase') for row in told[:stop]] == stop * [None]
  sums = [list(ledger.check(str(run), 'all')) for run in (found, wanted)]
  for row in sums[1]:
    if row.get('phase') == 'one':
      row['phase'] = 'plain'
  proven = [[row for row in rows if 'check' not in row] for rows in sums]
  assert proven[0] == proven[1] and len(proven[0]) >= 3
  assert all(row['valid'] for row in sums[0] if 'check' in row)
  # A checkpoint of before is scored as it was trained.
  plain_one = evaluate._config_of(str(found / 'checkpoints' / str(stop)))
  assert plain_one.data.dir == (f'{folder}/times@0.7', f'{folder}/sums@0.3')
  ask = ['--mode=ledger', f'--source={found}', f'--output={tmp_path}/a.toml']
  assert main.main(['zaya_jax', *ask]) == 2
  assert 'was trained by' in capsys.readouterr().err


def test_a_recipe_that_says_another_past_leaves_a_plain_run_alone(
  recipe, ran, tmp_path, capsys
):
  before = state(ran, 3)
  for change, message in (
    ({'0.7': '0.6'}, 'phase "one", mixture.times was 7/10 and is 2/3 now'),
    ({'_steps = 2': '_steps = 1'}, 'lr.warmup_steps was 2 and is 1 now'),
  ):
    assert train(recipe('all', change), ran) == 2
    assert message in capsys.readouterr().err
  taken = tmp_path / 'taken.toml'
  taken.write_text('')
  ask = ['zaya_jax', '--mode=ledger', f'--source={ran}', f'--output={taken}']
  assert main.main(ask) == 2
  assert 'there is such a file' in capsys.readouterr().err
  assert state(ran, 3) == before


@pytest.mark.long
def test_a_kill_before_the_recipe_has_saved_changes_nothing(
  straight, recipe, grown, ran
):
  path = grown(ran)
  flags = [f'--recipe={path}', f'--run_dir={ran}', *SETTINGS]
  program = [sys.executable, '-c', KILLED, 'SIGKILL', '4', *flags]
  done = subprocess.run(program, cwd=ROOT, capture_output=True, check=False)
  assert done.returncode == -9, done.stderr
  assert not (ran / 'checkpoints' / '4').exists()
  assert train(path, ran) == 0
  assert state(ran, 6)[:2] == state(straight(recipe()), 6)[:2]
  found = list(ledger.check(str(ran), 'all'))
  assert all(row['valid'] for row in found if 'check' in row)
