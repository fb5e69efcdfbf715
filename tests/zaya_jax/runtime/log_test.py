# SPDX-License-Identifier: Apache-2.0
"""Warnings are kept where the supervisor looks, and a full disk is no error."""

import logging

from tests.support import disk
from zaya_jax import config
from zaya_jax.runtime import log, session


def test_run_of_one_process_keeps_its_warnings(tmp_path):
  run_dir = tmp_path / 'run'
  with session.join(config.Config(run_dir=str(run_dir)), ''):
    assert not run_dir.exists()
    logging.info('small')
    logging.warning('%s is gone', 'x')
  logging.warning('later')
  assert (run_dir / 'log.txt').read_text() == 'zaya_jax: WARNING: x is gone\n'


def test_full_disk_loses_a_warning_and_prints_no_traceback(tmp_path, capsys):
  path = tmp_path / 'log.txt'
  with log.File(str(path)):
    with disk.full(10):
      logging.warning('lost')
    logging.warning('kept')
  assert path.read_text() == 'zaya_jax: WARNING: kept\n'
  assert 'Traceback' not in capsys.readouterr().err


def test_stderr_gets_warnings_all_the_same(tmp_path, monkeypatch, capsys):
  root = logging.getLogger()
  monkeypatch.setattr(root, 'handlers', [])  # Pytest has added some.
  with log.File(str(tmp_path / 'log.txt')):
    logging.getLogger('x').warning('seen')
  assert capsys.readouterr().err == 'seen\n'
  assert root.handlers == []
