# SPDX-License-Identifier: Apache-2.0
"""Commands that end, fail, crash or hang."""

import pathlib
import time

from zaya_jax.preflight.contact import child


def run(tmp_path, script, limit_s=60.0, **more):
  return child.run('one', ('-c', script), tmp_path, limit_s, **more)


def test_words_and_code_are_kept(tmp_path):
  script = (
    'import sys; print("row"); print("why", file=sys.stderr); sys.exit(3)'
  )
  found = run(tmp_path, script)
  assert (found.code, found.last) == (3, 'why')
  assert found.words == 'ended with 3'
  assert (tmp_path / 'one.out').read_text() == 'row\n'


def test_crash_is_told_by_its_signal(tmp_path):
  found = run(tmp_path, 'import os; os.kill(os.getpid(), 11)')
  assert found.code == -11 and found.words == 'was ended by SIGSEGV'


def test_hung_command_is_ended_with_what_it_has_started(tmp_path, monkeypatch):
  monkeypatch.setattr(child, '_END_S', 0.2)
  script = (
    'import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); '
    'child = os.fork(); print(os.getpid(), flush=True); time.sleep(600)'
  )
  began = time.monotonic()
  found = run(tmp_path, script, limit_s=1.0)
  assert found.code is None and time.monotonic() - began < 60
  assert 'did not end within' in found.words
  for pid in (tmp_path / 'one.out').read_text().split():
    # A killed process that nobody waits for is not gone at once.
    while not (ended := _has_ended(pid)) and time.monotonic() - began < 60:
      time.sleep(0.05)
    assert ended, pid


def _has_ended(pid: str) -> bool:
  try:
    return ' Z ' in pathlib.Path('/proc', pid, 'stat').read_text()
  except (FileNotFoundError, ProcessLookupError):
    return True


def test_variables_can_be_taken_away(tmp_path, monkeypatch):
  monkeypatch.setenv('TAKEN', 'x')
  script = 'import os; print(os.environ.get("TAKEN"), os.environ["GIVEN"])'
  run(tmp_path, script, environment={'TAKEN': None, 'GIVEN': 'y'})
  assert (tmp_path / 'one.out').read_text() == 'None y\n'


def test_progress_is_the_last_line(tmp_path, monkeypatch):
  monkeypatch.setattr(child, '_TELL_S', 0.2)
  told = []
  script = 'import time; print("at 7", flush=True); time.sleep(3)'
  run(tmp_path, script, tell=told.append)
  assert told and told[-1].endswith('s: at 7')
