# SPDX-License-Identifier: Apache-2.0
"""What a run does between its steps: it evaluates, saves and samples."""

import math
import os

import pytest

from tests.support import tiny
from zaya_jax import main
from zaya_jax.checkpoint import seal
from zaya_jax.inference import score

TEXT = ''.join(
  f'{i} times {j} is {i * j}.\n' for i in range(30) for j in range(30)
)


@pytest.fixture(scope='module')
def text(tmp_path_factory):
  path = tmp_path_factory.mktemp('text') / 'text.txt'
  path.write_text(TEXT)
  return path


@pytest.fixture
def train(text, tmp_path):
  """A function: flags -> the folder of a run of six steps."""

  def call(*args):
    run_dir = tmp_path / 'run'
    settings = f"""--data.input={text} --data.batch_size=4 --mesh.replica=1
      --num_steps=6 --log.every=1 --nolog.tensorboard --nolog.report
      --generate.max_tokens=1 --run_dir={run_dir}""".split()
    assert main.main(['zaya_jax', *tiny.FLAGS, *settings, *args]) == 0
    return run_dir

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
  found = saved(
    train('--eval.every=2', '--checkpoint.every=1', '--checkpoint.keep=1')
  )
  assert sorted(found) == [2, 6]
  assert found[2]['val/loss'] == 1.0 and found[6]['val/loss'] == 2.0
  assert found[2]['val/bpb'] == pytest.approx(1.0 / math.log(2), rel=0.05)
