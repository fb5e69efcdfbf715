# SPDX-License-Identifier: Apache-2.0
"""--mode=report from the command line, over HTTP, and beside training."""

import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest

from tests.support import run_files
from zaya_jax import config as config_lib
from zaya_jax.report import mode, overview, page, serve


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
    ('', {}, '--mode=report needs --source'),
    ('none', {}, 'There is no folder none'),
    ('{run},none', {}, 'There is no folder none'),
    ('{run}', {'output': 'x.pdf'}, '--output=x.pdf must be .*FILE.html'),
    ('{run}', {'output': '/proc/x.html'}, '/proc/x.html cannot be written'),
  ],
)
def test_what_cannot_be_reported_is_refused(run, source, changes, words):
  with pytest.raises(config_lib.UsageError, match=words):
    mode.main(_config(source.format(run=run), **changes))


@pytest.fixture
def server(run):
  with serve.make_server([str(run)], 0) as made:
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()


def _get(server, path, host=None):
  port = server.server_port
  request = urllib.request.Request(f'http://127.0.0.1:{port}{path}')
  request.add_header('Host', host or f'127.0.0.1:{port}')
  opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
  try:
    with opener.open(request, timeout=30) as answer:
      return answer.status, answer.read()
  except urllib.error.HTTPError as error:
    with error:
      return error.code, error.read()


def test_server_listens_to_this_machine_alone(server):
  assert server.server_address[0] == '127.0.0.1'


def test_server_gives_the_page_as_it_is_now(server, run):
  code, body = _get(server, '/')
  assert code == 200 and b'done: step 200 of 200' in body
  kept = (run / 'metrics.jsonl').read_text()
  (run / 'metrics.jsonl').write_text(kept[: len(kept) // 2])
  assert b'stopped: step' in _get(server, '/report.html')[1]
  (run / 'metrics.jsonl').write_text(kept)
  assert _get(server, '/plotly.min.js')[1] == page.plotly().read_bytes()


@pytest.mark.parametrize(
  'path', ['/config.flags', '/../config.flags', '//etc/passwd', '/samples/']
)
def test_server_gives_nothing_else(server, path):
  assert _get(server, path)[0] == 404


def test_server_refuses_who_calls_it_by_another_name(server):
  assert _get(server, '/', host='evil.example')[0] == 403
  assert _get(server, '/', host=f'localhost:{server.server_port}')[0] == 200


def test_port_in_use_is_refused(server, run):
  with pytest.raises(config_lib.UsageError, match='--report.port=.* cannot be'):
    serve.serve([str(run)], server.server_port)


def test_serving_no_run_is_refused(tmp_path):
  with pytest.raises(config_lib.UsageError, match='There is no folder'):
    serve.serve([str(tmp_path / 'none')], 0)


def _live(folder, **changes):
  config = config_lib.Config(
    run_dir=str(folder), log=config_lib.LogConfig(**changes)
  )
  return overview.Live(config, wanted=True)


def test_training_keeps_the_page(tmp_path, monkeypatch):
  now = [0.0]
  monkeypatch.setattr('time.monotonic', lambda: now[0])
  run = run_files.write(tmp_path / 'run', done=100)
  with _live(run) as live:
    assert not live.is_due()
    now[0] = 31.0
    assert live.is_due()
    live.write()
    assert 'running: step 100' in (run / 'report.html').read_text()
    assert not live.is_due()
  assert 'stopped: step 100' in (run / 'report.html').read_text()


def test_page_takes_at_most_a_hundredth_of_the_run(tmp_path, monkeypatch):
  now = [0.0]
  monkeypatch.setattr('time.monotonic', lambda: now[0])
  monkeypatch.setattr(
    overview, 'write', lambda *args, **kwargs: now.__setitem__(0, now[0] + 7)
  )
  live = _live(tmp_path)
  live.write()
  now[0] += 690
  assert not live.is_due()
  now[0] += 20
  assert live.is_due()


def test_page_that_cannot_be_written_does_not_stop_the_run(tmp_path, caplog):
  run = run_files.write(tmp_path / 'run')
  (run / 'report.html.partial').mkdir()
  with _live(run) as live:
    live.write()
    live.write()
  assert caplog.text.count('report.html is not written any more') == 1


def test_run_that_fails_leaves_a_page_and_ctrl_c_does_not_wait(tmp_path):
  for name, error in (('a', ValueError), ('b', KeyboardInterrupt)):
    run = run_files.write(tmp_path / name)
    with pytest.raises(error), _live(run):
      raise error
  assert (tmp_path / 'a' / 'report.html').exists()
  assert not (tmp_path / 'b' / 'report.html').exists()


def test_page_that_is_not_wanted_is_not_written(tmp_path):
  with _live(tmp_path, report=False) as live:
    live.write()
  assert list(tmp_path.iterdir()) == []
