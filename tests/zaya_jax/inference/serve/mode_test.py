# SPDX-License-Identifier: Apache-2.0
"""--mode=serve on the command line: what it refuses, and how it ends."""

import concurrent.futures
import json
import os
import re
import signal
import socket
import subprocess
import sys

import httpx2
import pytest

from tests.support import tuning
from zaya_jax import main


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
  """Runs the mode on a folder that is no model; (exit code, stderr)."""
  monkeypatch.delenv('ZAYA_API_KEY', raising=False)

  def go(*args):
    words = ['--mode=serve', f'--source={tmp_path}', *args]
    code = main.main(['zaya_jax', *words])
    return code, capsys.readouterr().err

  return go


def test_other_machines_need_a_key(run, tmp_path, monkeypatch):
  for host in ('0.0.0.0', '::', '10.1.2.3'):
    code, err = run(f'--serve.host={host}')
    assert code == 2
    assert f'--serve.host={host} lets other machines in, and there is no' in err
  file = tmp_path / 'keys'
  file.write_text('\n \n')
  code, err = run('--serve.host=0.0.0.0', f'--serve.api_key_file={file}')
  assert code == 2 and 'has no key; write one per line' in err
  code, err = run(f'--serve.api_key_file={tmp_path / "none"}')
  assert code == 2 and 'does not exist; name a file with a key' in err
  # With one it goes on, to a folder that is no model.
  file.write_text('secret\n')
  some = f'--serve.api_key_file={file}'
  any_ = ('--serve.host=0.0.0.0', '--serve.port=0')
  _, err = run(*any_, some)
  assert 'holds no complete checkpoint' in err
  monkeypatch.setenv('ZAYA_API_KEY', 'secret')
  assert run(*any_)[1] == err


def test_port_in_use_is_told(run):
  with socket.create_server(('127.0.0.1', 0)) as taken:
    port = taken.getsockname()[1]
    code, err = run(f'--serve.port={port}')
  assert code == 2
  assert f'--serve.port={port} cannot be used: Address already in use' in err
  code, err = run('--serve.host=nowhere.invalid')
  assert code == 2 and '--serve.host=nowhere.invalid' in err


def test_missing_package_is_named(run, monkeypatch):
  for name in ('door', 'listen'):
    name = f'zaya_jax.inference.serve.{name}'
    monkeypatch.delitem(sys.modules, name, raising=False)
  monkeypatch.delattr('zaya_jax.inference.serve.door', raising=False)
  monkeypatch.delattr('zaya_jax.inference.serve.listen', raising=False)
  monkeypatch.setitem(sys.modules, 'starlette', None)
  code, err = run()
  assert code == 2 and 'needs the package starlette; install' in err


@pytest.mark.long
def test_requests_end_before_the_server_does(tmp_path):
  folder = tmp_path / 'hf'
  tuning.model_folder(folder)
  words = ['--mode=serve', f'--source={folder}', '--serve.port=0']
  with subprocess.Popen(
    [sys.executable, '-m', 'zaya_jax.main', *words],
    stdout=subprocess.PIPE,
    text=True,
    env={k: v for k, v in os.environ.items() if k != 'XLA_FLAGS'},
  ) as server:
    url = re.match(r'(http://\S+)/ has hf', server.stdout.readline())[1]
    body = {'prompt': 'x', 'max_tokens': 250, 'stream': True, 'n': 8}
    with httpx2.stream('POST', f'{url}/v1/completions', json=body) as answer:
      lines = answer.iter_lines()
      next(lines)
      server.send_signal(signal.SIGTERM)
      rest = [line for line in lines if line]
    assert rest[-1] == 'data: [DONE]'
    finishes = [
      json.loads(line[6:])['choices'][0]['finish_reason'] for line in rest[:-1]
    ]
    assert finishes.count('length') == 8
    assert server.wait(30) == 0
    with pytest.raises(httpx2.ConnectError):
      httpx2.get(f'{url}/health')


@pytest.mark.long
def test_second_signal_does_not_wait(tmp_path):
  folder = tmp_path / 'hf'
  tuning.model_folder(folder)
  words = ['--mode=serve', f'--source={folder}', '--serve.port=0']
  with (
    subprocess.Popen(
      [sys.executable, '-m', 'zaya_jax.main', *words, '--serve.slots=1'],
      stdout=subprocess.PIPE,
      text=True,
    ) as server,
    concurrent.futures.ThreadPoolExecutor(1) as pool,
  ):
    url = re.match(r'(http://\S+)/ has hf', server.stdout.readline())[1]
    body = {'prompt': 'x', 'max_tokens': 250, 'n': 60}
    answer = pool.submit(
      httpx2.post, f'{url}/v1/completions', json=body, timeout=60
    )
    while 'busy 1.0' not in httpx2.get(f'{url}/metrics').text:
      pass
    server.send_signal(signal.SIGTERM)
    server.send_signal(signal.SIGINT)
    assert server.wait(60) == 0
    assert answer.exception() or answer.result().status_code >= 500
