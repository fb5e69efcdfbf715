# SPDX-License-Identifier: Apache-2.0
"""Which trackers a run gets, and what they hear of it."""

import math
import socket
import urllib.request

import pytest

from zaya_jax import config as config_lib
from zaya_jax import main, metrics
from zaya_jax.config import checks
from zaya_jax.metrics import trackers
from zaya_jax.metrics.trackers import following
from zaya_jax.train import run


def _port():
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    return free.getsockname()[1]


def _config(run_dir, **log):
  log = config_lib.LogConfig(tensorboard=False, **log)
  return config_lib.Config(run_dir=str(run_dir), log=log)


def _reporter(config, heard_by):
  return metrics.Reporter(
    config,
    run_dir=config.run_dir,
    num_params=2,
    active_params=1,
    flops_per_token=1.0,
    epochs=lambda tokens: 0.0,
    device_kind='cpu',
    num_devices=1,
    followers=heard_by,
  )


def test_none_is_opened_that_is_not_asked_for(tmp_path):
  with following.opened(_config(tmp_path), run._serve) as found:
    assert found == {}


def test_a_scrape_reads_the_rows_of_the_run(tmp_path):
  port = _port()
  config = _config(tmp_path, metrics_port=port)
  with (
    following.opened(config, run._serve) as found,
    _reporter(config, found) as report,
  ):
    report.evaluation(7, {'val/loss': 2.5, 'val/bpb': 1.25})
    address = f'http://127.0.0.1:{port}/metrics'
    with urllib.request.urlopen(address, timeout=60) as answer:
      lines = answer.read().decode().splitlines()
  assert 'zaya_jax_step 7.0' in lines
  assert 'zaya_jax_val_bpb 1.25' in lines
  with pytest.raises(OSError):
    urllib.request.urlopen(address, timeout=60)


def test_a_port_in_use_is_one_sentence(tmp_path):
  with socket.socket() as taken:
    taken.bind(('127.0.0.1', 0))
    taken.listen()
    port = taken.getsockname()[1]
    with pytest.raises(config_lib.UsageError, match='metrics_port=.*cannot be'):
      with following.opened(_config(tmp_path, metrics_port=port), run._serve):
        pass


class Broken(trackers.Tracker):
  """Loses what it is told."""

  def scalars(self, values, step):
    raise OSError('it is away')

  def text(self, name, words, step):
    raise OSError('it is away')


def test_a_broken_tracker_is_told_once_and_the_run_goes_on(tmp_path, capsys):
  config = _config(tmp_path)
  with _reporter(config, {'--log.mlflow': Broken()}) as report:
    report.evaluation(1, {'val/loss': 2.5, 'val/bpb': math.nan})
    report.sample(1, 'a', 'b')
  shown = capsys.readouterr().out
  assert shown.count('--log.mlflow is paused (it is away)') == 1


@pytest.mark.parametrize('name', ['wandb', 'mlflow'])
def test_a_missing_package_is_one_sentence(tmp_path, monkeypatch, capsys, name):
  find = checks.importlib.util.find_spec
  # W&B leaves a folder of its name, which Python takes for a package.
  empty = type('Spec', (), {'origin': None})
  monkeypatch.setattr(
    checks.importlib.util,
    'find_spec',
    lambda asked: empty if asked == name else find(asked),
  )
  words = [f'--run_dir={tmp_path}/new', '--data.input=stdlib', f'--log.{name}']
  assert main.main(['zaya_jax', *words]) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert f'--log.{name} needs the package {name}' in line
  assert not (tmp_path / 'new').exists()


def test_a_supervised_run_has_one_port(tmp_path, capsys):
  words = [f'--run_dir={tmp_path}/new', '--data.input=stdlib']
  words += ['--mode=supervise', '--log.metrics_port=9000']
  assert main.main(['zaya_jax', *words]) == 2
  assert 'has --aegis.port; drop one' in capsys.readouterr().err


class _Broken:
  def scalars(self, values, step):
    pass

  def close(self):
    raise OSError('the server is away')


def test_what_a_tracker_loses_at_the_end_is_said(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(following, '_fed', lambda name, config: _Broken())
  with following.opened(_config(tmp_path, wandb=True), run._serve):
    pass
  err = capsys.readouterr().err
  assert err == '--log.wandb has not got all: the server is away.\n'
