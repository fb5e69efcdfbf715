# SPDX-License-Identifier: Apache-2.0
"""What --mode=rehearse refuses, and that a failed act or check ends with 1.

The whole of it is `make rehearsal`.
"""

import json
import subprocess

import pytest

from tests.zaya_jax.aegis.rehearsal import judge_test
from zaya_jax import main
from zaya_jax.aegis.rehearsal import judge, mode, play


@pytest.fixture
def call(tmp_path, capsys):
  recipe = tmp_path / 'recipe.toml'
  recipe.write_text(judge_test.RECIPE)

  def run(*args):
    words = [f'--recipe={recipe}', f'--run_dir={tmp_path}/runs', *args]
    code = main.main(['zaya_jax', '--mode=rehearse', *words])
    out, err = capsys.readouterr()
    return code, [json.loads(line) for line in out.splitlines()], err

  return run


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch):
  monkeypatch.setattr(play.Play, 'act', lambda self, act: '')
  for name in (
    'ledger', 'digests', 'quotas', 'states', 'optimizer', 'rates', 'losses',
    'kills', 'model',
  ):  # fmt: skip
    monkeypatch.setattr(judge, name, lambda *_: 'as it must be')


def test_all_acts_are_played_twice_and_all_is_judged(call):
  code, rows, err = call()
  assert code == 0
  assert [row['check'] for row in rows] == [
    *(f'reference act {i}' for i in (1, 2, 3, 4)),
    *(f'disturbed act {i}' for i in (1, 2, 3, 4)),
    'ledger', 'digests', 'quotas', 'order', 'states', 'optimizer', 'rates',
    'losses', 'kills', 'export',
  ]  # fmt: skip
  assert 'rehearsal: passed' in err


def test_an_act_that_fails_is_the_last(call, monkeypatch):
  monkeypatch.setattr(play.Play, 'act', lambda self, act: 'exit code 1')
  code, rows, err = call()
  assert code == 1
  assert [row['passed'] for row in rows] == [False]
  assert 'rehearsal: FAILED, its runs are in' in err


@pytest.mark.parametrize('problem', ['', 'a row', 'an exception'])
def test_runs_of_no_name_are_kept_if_something_failed(
  call, monkeypatch, tmp_path, problem
):
  root = tmp_path / 'made'
  monkeypatch.setattr(mode.tempfile, 'mkdtemp', lambda **_: str(root))

  def act(*_):
    if problem == 'an exception':
      raise subprocess.TimeoutExpired('it', 900)
    return problem

  monkeypatch.setattr(play.Play, 'act', act)
  if problem == 'an exception':
    with pytest.raises(subprocess.TimeoutExpired):
      call('--run_dir=')
  else:
    call('--run_dir=')
  assert root.exists() == bool(problem)


def test_a_check_that_fails_is_told_and_others_go_on(call, monkeypatch):
  def fail(*_):
    raise judge.Fault('step 3 has 1, and its tokens say 2')

  monkeypatch.setattr(judge, 'rates', fail)
  code, rows, _ = call()
  assert code == 1
  [bad] = [row for row in rows if not row['passed']]
  assert (bad['check'], bad['said']) == (
    'rates', 'step 3 has 1, and its tokens say 2',
  )  # fmt: skip
  assert rows[-1]['check'] == 'export'


def test_what_cannot_be_rehearsed_is_refused(call, tmp_path):
  assert call('--recipe=')[0] == 2
  (tmp_path / 'runs').mkdir()
  (tmp_path / 'runs' / 'mine').touch()
  code, _, err = call()
  assert code == 2 and 'is not empty' in err
