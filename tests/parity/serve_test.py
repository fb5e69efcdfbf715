# SPDX-License-Identifier: Apache-2.0
"""An exported folder, served by `transformers serve`: the text is ours."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

import zaya_jax
from tests.support import runs
from zaya_jax import main

PROMPT = 'xyzzy'


@pytest.fixture(scope='module')
def exported(tmp_path_factory):
  folder = tmp_path_factory.mktemp('served')
  run, out = folder / 'run', folder / 'out'
  runs.save_readable(run)
  words = [f'--source={run}', f'--output={out}']
  assert main.main(['zaya_jax', '--mode=export', *words]) == 0
  return str(out)


@pytest.fixture(scope='module')
def server(exported):
  """The address of a server that has loaded the folder."""
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    port = free.getsockname()[1]
  process = subprocess.Popen(
    [
      *(sys.executable, '-m', 'transformers.cli.transformers', 'serve'),
      *(exported, '--device=cpu', '--dtype=float32', f'--port={port}'),
    ],
    env={**os.environ, 'HF_HUB_OFFLINE': '1'},
    cwd=pathlib.Path(exported).parent,
  )
  address = f'http://127.0.0.1:{port}'
  for _ in range(600):
    assert process.poll() is None
    try:
      urllib.request.urlopen(f'{address}/health', timeout=10).close()
      break
    except urllib.error.URLError:
      time.sleep(0.5)
  yield address
  process.terminate()
  process.wait(60)


def test_its_greedy_text_is_ours(exported, server):
  asked = {'model': exported, 'prompt': PROMPT, 'max_tokens': 12}
  request = urllib.request.Request(
    f'{server}/v1/completions',
    json.dumps({**asked, 'temperature': 0}).encode(),
    {'Content-Type': 'application/json'},
  )
  with urllib.request.urlopen(request, timeout=300) as answer:
    found = json.load(answer)
  model = zaya_jax.load(exported)
  [ours] = model.generate([PROMPT], max_tokens=12, temperature=0.0)
  assert found['choices'][0]['text'] == ours.removeprefix(PROMPT)
  assert found['usage']['prompt_tokens'] == 1 + len(PROMPT)  # bos
