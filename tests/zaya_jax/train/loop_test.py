# SPDX-License-Identifier: Apache-2.0
"""What a run does between its steps: it evaluates, saves and samples."""

import itertools
import json
import math
import os
import types

import jax
import numpy as np
import pytest

import pipelines.prepare
from tests.support import compiled, tiny
from zaya_jax import config as config_lib
from zaya_jax import main
from zaya_jax.checkpoint import meta, seal
from zaya_jax.config import exit_codes
from zaya_jax.data.ledger import book as book_lib
from zaya_jax.data.ledger import chain, digest
from zaya_jax.inference import model as model_lib
from zaya_jax.inference import score
from zaya_jax.parallel import batch as batch_lib
from zaya_jax.train import loop as loop_lib

TEXT = ''.join(
  f'{i} times {j} is {i * j}.\n' for i in range(30) for j in range(30)
)


@pytest.fixture(scope='module')
def text(tmp_path_factory):
  path = tmp_path_factory.mktemp('text') / 'text.txt'
  path.write_text(TEXT)
  return path


@pytest.fixture(scope='module', autouse=True)
def compiled_once():
  yield from compiled.once()


@pytest.fixture
def train(text, tmp_path):
  """A function: flags -> the folder of a run of six steps."""

  def call(*args):
    run_dir = tmp_path / 'run'
    settings = f"""--data.input={text} --data.batch_size=4 --mesh.replica=1
      --num_steps=6 --log.every=1 --nolog.tensorboard --nolog.report
      --log.sample_every=0 --generate.max_tokens=1
      --run_dir={run_dir}""".split()
    assert main.main(['zaya_jax', *tiny.FLAGS, *settings, *args]) == 0
    return run_dir

  call.run_dir = tmp_path / 'run'
  return call


def saved(run_dir):
  """The metrics of each checkpoint that has stayed, by its step."""
  folder = run_dir / 'checkpoints'
  return {
    int(name): seal.read(str(folder / name))['metrics']
    for name in os.listdir(folder)
  }


def test_best_checkpoint_stays_when_later_ones_are_saved_more_often(
  train, monkeypatch
):
  nats = iter([1.0, 3.0, 2.0])  # Of steps 2, 4 and 6.
  monkeypatch.setattr(score, 'score', lambda *_: (next(nats), 1.0))
  args = '--eval.every=2 --checkpoint.every=1 --checkpoint.keep=1'.split()
  found = saved(train(*args))
  assert not (train.run_dir / 'samples').exists()
  assert sorted(found) == [2, 6]
  assert found[2]['val/loss'] == 1.0 and found[6]['val/loss'] == 2.0
  assert found[2]['val/bpb'] == pytest.approx(1.0 / math.log(2), rel=0.05)


def test_step_that_could_not_be_saved_is_not_told_as_saved(train, monkeypatch):
  write = seal.write

  def full(directory, *args, **kwargs):
    if f'{os.sep}2.' in directory:
      raise OSError(28, 'No space left on device')
    return write(directory, *args, **kwargs)

  monkeypatch.setattr(seal, 'write', full)
  run_dir = train('--checkpoint.every=2', '--eval.every=0')
  log = (run_dir / 'log.txt').read_text()
  told = [line.split()[2] for line in log.splitlines() if 'saved step' in line]
  assert told == ['4', '6'] and sorted(saved(run_dir)) == [4, 6]


def test_every_folder_of_a_mixture_is_evaluated(train, text, monkeypatch):
  """By hand: of scores 1 and 2 nats with the weights 3 and 1."""
  nats = iter([2.0, 1.0])
  monkeypatch.setattr(score, 'score', lambda *_: (next(nats), 1.0))
  parts = [train.run_dir.parent / name for name in ('code', 'wiki')]
  for part in parts:
    pipelines.prepare.prepare(
      str(text), part, record_tokens=1024, val_fraction=0.1
    )
  train(
    f'--data.dir={parts[0]},{parts[1]}@3', '--data.input=', '--eval.every=0'
  )
  rows = (train.run_dir / 'metrics.jsonl').read_text().splitlines()
  (row,) = [r for r in map(json.loads, rows) if 'val/bpb' in r]
  assert row['val/loss'] == 1.25
  (saved_,) = saved(train.run_dir).values()
  assert saved_['val/loss'] == 1.25 and saved_['val/bpb'] == row['val/bpb']
  code, wiki = row['val/bpb/code'], row['val/bpb/wiki']
  assert code == pytest.approx(2 * wiki)
  assert row['val/bpb'] == pytest.approx((code + 3 * wiki) / 4)


def test_run_that_evaluates_nothing_says_so(train, capsys):
  train('--data.val_fraction=0')
  assert capsys.readouterr().out.count('nothing is evaluated') == 1


def test_run_goes_on_at_a_new_level_of_its_loss(train, monkeypatch):
  put, count = batch_lib.put_batch, itertools.count(1)

  def put_batch(mesh, batch):
    """From step 25 on each token is followed by one that was never seen."""
    if next(count) >= 25:
      batch = {**batch, 'targets': np.full_like(batch['targets'], 255)}
    return put(mesh, batch)

  monkeypatch.setattr(batch_lib, 'put_batch', put_batch)
  args = '--num_steps=35 --optim.lr=1e-2 --guard.spike_limit=5'.split()
  run_dir = train(*args, '--checkpoint.every=0')
  lines = (run_dir / 'incidents.jsonl').read_text().splitlines()
  told = [(row['kind'], row['step']) for row in map(json.loads, lines)]
  # Half of --optim.max_bad_steps=10; the sixth is taken, and those after it.
  assert told == [('loss_spike', step) for step in range(25, 30)]


class OutOfMemory(Exception):
  """As XLA's; of no kind that a program could take for something else."""


def test_state_is_on_disk_before_it_is_evaluated(train, monkeypatch):
  def fail(*_):
    assert list(saved(train.run_dir)) == [6]
    raise OutOfMemory

  monkeypatch.setattr(score, 'score', fail)
  with pytest.raises(OutOfMemory):
    train('--eval.every=0', '--checkpoint.every=0')
  assert 'val/bpb' not in saved(train.run_dir)[6]


def test_sample_is_made_last_and_divided_weights_stay_divided(
  train, monkeypatch
):
  kinds = []

  def fail(model, *_, **__):
    kinds.extend(map(type, jax.tree.leaves((model.params, model.buffers))))
    raise OutOfMemory

  monkeypatch.setattr(model_lib.Model, 'generate', fail)
  with pytest.raises(OutOfMemory):
    args = '--mesh.fsdp=2 --eval.batches=1 --checkpoint.every=0'.split()
    train(*args, '--log.sample_every=6')
  # Nothing is lost, not even what was measured last.
  assert saved(train.run_dir)[6]['val/bpb'] > 0
  assert set(kinds) == {np.ndarray}  # Of the host: no device has them all.


class Ends:
  """A loop whose steps compute nothing; the second half are refused."""

  def __init__(self, monkeypatch, num_steps, signal='', max_bad_steps=2):
    config = config_lib.Config(
      num_steps=num_steps,
      optim=config_lib.OptimConfig(max_bad_steps=max_bad_steps),
    )
    monkeypatch.setattr(batch_lib, 'put_batch', lambda mesh, batch: batch)
    monkeypatch.setattr(loop_lib.groups, 'summary', lambda *a, **k: ())
    monkeypatch.setattr(loop_lib.Loop, '_compile', lambda *args: None)
    self.data, self.signal = Windows(), types.SimpleNamespace(name=signal)
    nothing = types.SimpleNamespace(
      in_order=lambda: [],
      newest_saved=lambda: None,
      note=lambda line: None,
      begins=lambda row, notes: None,
      push=lambda *args, **more: None,
      finish=lambda checkpoint, data: None,
      step=self.step,
      settle=lambda state: state,
      digest=None,
    )
    self.loop = loop_lib.Loop(config, None, self.data, None, *[nothing] * 5)
    self.num_steps = num_steps

  def step(self, step, state, batch, window):
    return state, {'optim/bad_steps': max(0, step - self.num_steps // 2)}

  def run(self):
    state = types.SimpleNamespace(params={})
    begin = types.SimpleNamespace(
      state=state, step=0, tokens=0, notes=(), fast=None
    )
    return self.loop.run(begin, self.signal)


class Windows:
  state = 0

  def __next__(self):
    return {}


def test_last_step_is_judged_like_the_others(monkeypatch):
  with pytest.raises(loop_lib.NumericsError, match='2 steps in a row'):
    Ends(monkeypatch, num_steps=4).run()


# Who has done its last step is done: nothing is left to go on with.
@pytest.mark.parametrize('steps, code', [(1, 'DONE'), (2, 'STOPPED')])
def test_signal_in_the_last_step_changes_nothing(monkeypatch, steps, code):
  ends = Ends(monkeypatch, steps, signal='SIGTERM', max_bad_steps=9)
  assert ends.run() == getattr(exit_codes, code)


def lines_of(run_dir):
  lines, _ = chain.read(run_dir / chain.NAME)
  return [row for row in chain.parse(run_dir, lines) if 'rows' in row]


def test_ledger_tells_what_was_trained_and_refused(train, monkeypatch, capsys):
  put, given = batch_lib.put_batch, []

  def put_batch(mesh, batch):
    """The third batch has a target without an end."""
    given.append(batch)
    if len(given) == 3:
      batch = {**batch, 'weights': batch['weights'] * np.float32('inf')}
    return put(mesh, batch)

  monkeypatch.setattr(batch_lib, 'put_batch', put_batch)
  run_dir = train('--checkpoint.every=4', '--eval.every=0')
  found = lines_of(run_dir)
  assert [(x['outcome'], x['rows'], x['steps']) for x in found] == [
    ('trained', [0, 8], [0, 2]),
    ('refused', [8, 12], [2, 3]),
    ('trained', [12, 16], [3, 4]),
    ('trained', [16, 24], [4, 6]),
  ]
  each = [
    x['each'][i : i + 16] for x in found for i in range(0, len(x['each']), 16)
  ]
  del given[6:]  # Those of the evaluation.
  for batch, text in zip(given, each, strict=True):
    columns = np.arange(batch['tokens'].shape[1])
    *sums, numbers = digest.of_batch(batch, columns)
    rows = [int(x.sum(dtype=np.uint64)) for x in digest.finish(*sums)]
    assert digest.to_hex(*rows) == text
  counted = sum(int(batch['weights'].sum()) for batch in given)
  assert sum(x['counted'] for x in found) == counted
  about = meta.read(str(run_dir / 'checkpoints' / '6'))
  head = about[book_lib.META]
  chain.check(run_dir, chain.read(run_dir / chain.NAME)[0], head)

  # The same command goes on with its ledger, and with no other.
  path = run_dir / chain.NAME
  path.write_bytes(
    path.read_bytes().replace(b'"steps":[2,3]', b'"steps":[2,4]')
  )
  with pytest.raises(AssertionError, match='3'):
    train('--num_steps=9', '--eval.every=0')
  assert 'ledger.jsonl, line 3, was changed' in capsys.readouterr().err
