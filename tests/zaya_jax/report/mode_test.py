# SPDX-License-Identifier: Apache-2.0
"""--mode=report from the command line."""

import os
import subprocess
import sys

import pytest

from tests.support import run_files
from zaya_jax import config as config_lib
from zaya_jax.report import mode


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  return run_files.write(tmp_path_factory.mktemp('mode') / 'runs' / 'a')


def _config(source, **changes):
  return config_lib.Config(mode='report', source=str(source), **changes)


def test_command_writes_the_page_and_needs_no_jax(run):
  script = (
    'import sys; from zaya_jax import main; '
    'code = main.main(["zaya_jax", *sys.argv[1:]]); '
    'print([name for name in ("jax", "plotly") if name in sys.modules]); '
    'sys.exit(code)'
  )
  done = subprocess.run(
    [sys.executable, '-c', script, '--mode=report', f'--run_dir={run}'],
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert (done.returncode, done.stderr) == (0, '')
  assert done.stdout == f'{run}/report.html\n[]\n'
  assert {'report.html', 'plotly.min.js'} <= set(os.listdir(run))


def test_several_runs_are_written_above_them(run, capsys, monkeypatch):
  run_files.write(run.parent / 'b')
  monkeypatch.chdir(run.parent.parent)
  mode.main(_config('runs/a,runs/b,runs/a'))
  assert capsys.readouterr().out == 'runs/report.html\n'
  assert '2 runs compared' in (run.parent / 'report.html').read_text()


def test_folder_with_a_comma_is_one_run(tmp_path, capsys):
  folder = run_files.write(tmp_path / 'a,b')
  mode.main(_config(folder))
  assert capsys.readouterr().out == f'{folder}/report.html\n'


def test_page_of_a_checkpoint_is_that_of_its_run(tmp_path, capsys):
  run = run_files.write(tmp_path / 'run')
  (run / 'checkpoints' / '200').mkdir(parents=True)
  mode.main(_config(run / 'checkpoints' / '200'))
  assert capsys.readouterr().out == f'{run}/report.html\n'
  assert not list((run / 'checkpoints').rglob('*.*'))


def test_model_folder_is_refused_and_left_alone(tmp_path):
  (tmp_path / 'model.safetensors').touch()
  with pytest.raises(config_lib.UsageError, match='is a Hugging Face folder'):
    mode.main(_config(tmp_path))
  assert [path.name for path in tmp_path.iterdir()] == ['model.safetensors']


def test_output_names_the_page(run, tmp_path):
  mode.main(_config(run, output=str(tmp_path / 'new' / 'x.html')))
  assert (tmp_path / 'new' / 'x.html').exists()


@pytest.mark.parametrize(
  'source, changes, words',
  [
    ('none', {}, 'There is no folder none'),
    ('{run},none', {}, 'There is no folder none'),
    ('{run}', {'output': 'x.pdf'}, '--output=x.pdf must be .*FILE.html'),
    ('{run}', {'output': '/proc/x.html'}, '/proc/x.html cannot be written'),
  ],
)
def test_what_cannot_be_reported_is_refused(run, source, changes, words):
  with pytest.raises(config_lib.UsageError, match=words):
    mode.main(_config(source.format(run=run), **changes))
