# SPDX-License-Identifier: Apache-2.0
"""--mode=contact: order, limits, going on, page and archive."""

import json
import os
import subprocess
import sys
import tarfile

import pytest

from zaya_jax import config as config_lib
from zaya_jax import main
from zaya_jax.preflight.contact import mode, page, stages, verdicts

DEVICE = {
  'chip': 'cpu',
  'platform': 'cpu',
  'devices': 1,
  'versions': {'jax': '1'},
  'has_gpu': False,
  'library': '',
}


def stage(name, *scripts, outcome='right', **more):
  commands = tuple(
    stages.Command(
      name=f'{name}_{i}',
      words=('-c', script),
      limit_s=more.pop('limit_s', 60.0),
    )
    for i, script in enumerate(scripts)
  )

  def judge(root, ended):
    bad = any(one.code for one in ended)
    late = any(one.code is None for one in ended)
    found = 'late' if late else 'failed' if bad else outcome
    return verdicts.Verdict(outcome=found, said=name, advice=(f'do {name}',))

  return stages.Stage(
    name=name, about=name, commands=commands, judge=judge, **more
  )


@pytest.fixture
def call(tmp_path, monkeypatch, capfd):
  """A function: later stages, flags -> exit code and what was said."""

  def run(*later, device=DEVICE, flags=()):
    script = f'print({json.dumps(json.dumps(device))})'
    first = stages.Stage(
      name='device',
      about='look',
      commands=(
        stages.Command(name='device', words=('-c', script), limit_s=60.0),
      ),
      judge=verdicts.device,
      stops=True,
    )
    monkeypatch.setattr(stages, 'before', lambda *_: [first])
    monkeypatch.setattr(stages, 'after', lambda *_: list(later))
    words = '--mode=contact', f'--run_dir={tmp_path}/run', *flags
    code = main.main(['zaya_jax', *words])
    out, err = capfd.readouterr()
    return code, out, err

  return run


def state(tmp_path):
  return json.loads((tmp_path / 'run/contact.json').read_text())['stages']


def test_all_right_is_0_with_page_and_archive(call, tmp_path):
  code, _, err = call(stage('one', 'print(1)'), stage('two', 'print(2)'))
  assert code == 0 and f'send {tmp_path}/run/{page.ARCHIVE}' in err
  assert [*state(tmp_path)] == ['device', 'one', 'two']
  html = (tmp_path / 'run' / page.PAGE).read_text()
  assert 'First contact: 1 x cpu on ' in html
  # It can be sent alone: no other file is asked for.
  assert 'src="plotly' not in html and 'Plotly' in html
  with tarfile.open(tmp_path / 'run' / page.ARCHIVE) as archive:
    names = {name.partition('/')[2] for name in archive.getnames()}
  assert {page.PAGE, 'contact.json', 'flags', 'logs/one_0.out'} <= names


def test_wrong_kernels_stop_with_3_and_say_what_to_do(call, tmp_path):
  bad = stage('bad', 'pass', outcome='wrong', stops=True)
  marker = tmp_path / 'ran'
  then = stage('then', f'open({str(marker)!r}, "w")')
  code, out, _ = call(bad, then)
  assert code == 3 and out == 'bad: do bad\n' and not marker.exists()
  assert (tmp_path / 'run' / page.ARCHIVE).exists()
  code, *_ = call(bad, then, flags=('--contact.go_on',))
  assert code == 3 and marker.exists()


def test_missing_library_stops_before_any_kernel(call, tmp_path):
  broken = {**DEVICE, 'platform': 'rocm', 'library': 'no libzaya_ops.so'}
  code, out, _ = call(stage('one', 'pass'), device=broken)
  assert code == 3 and 'make -C ops/native rocm' in out
  assert [*state(tmp_path)] == ['device']


def test_failed_command_is_1_and_the_next_stage_runs(call, tmp_path):
  code, *_ = call(stage('bad', 'raise OSError'), stage('then', 'pass'))
  assert code == 1 and state(tmp_path)['then']['outcome'] == 'right'


def test_hung_command_is_75_and_goes_on_where_it_was(call, tmp_path):
  counter = tmp_path / 'count'
  count = f'open({str(counter)!r}, "a").write("x")'
  slow = stage('slow', count, 'import time; time.sleep(600)', limit_s=20.0)
  fast = stage('slow', count, 'pass')
  hung = slow.commands[1]
  object.__setattr__(hung, 'limit_s', 0.5)
  code, out, _ = call(slow)
  assert code == 75 and 'The same command goes on where it was.' in out
  code, _, err = call(fast)
  assert code == 0 and counter.read_text() == 'x'  # Done before.
  code, _, err = call(fast)
  assert 'slow: done before' in err and counter.read_text() == 'x'
  code, *_ = call(fast, flags=('--noresume',))
  assert code == 0 and counter.read_text() == 'xx'


def unfinished(counter, most):
  """A stage whose command says `most` times that it has not done all."""
  one = stage('one', f'open({str(counter)!r}, "a").write("x")')

  def judge(root, ended):
    assert [e.name for e in ended] == ['one_0']
    late = len(counter.read_text()) < most
    return verdicts.Verdict(
      outcome='late' if late else 'right',
      said='',
      unfinished=('one_0',) if late else (),
    )

  object.__setattr__(one, 'judge', judge)
  return one


def test_command_that_has_not_done_all_is_repeated(call, tmp_path):
  counter = tmp_path / 'count'
  assert call(unfinished(counter, 3))[0] == 0
  assert counter.read_text() == 'xxx'
  assert state(tmp_path)['one']['done'] == ['one_0']


def test_without_time_the_next_command_repeats_it(call, tmp_path, monkeypatch):
  monkeypatch.setattr(mode, '_LEAST_S', 25.0)  # Of half a minute.
  counter = tmp_path / 'count'
  minute = '--contact.minutes=0.5'
  assert call(unfinished(counter, 10**6), flags=(minute,))[0] == 75
  assert state(tmp_path)['one']['done'] == []
  before = len(counter.read_text())
  assert call(unfinished(counter, before + 1))[0] == 0


def test_what_is_done_needs_no_time(tmp_path):
  words = '--mode=contact', f'--run_dir={tmp_path}'
  contact = mode.Contact(config_lib.Config.parse(words))
  left = [stage('a', share=0.4), stage('b', share=0.5), stage('c')]
  assert contact._share(left) == pytest.approx(0.4)
  contact.entries['c'] = {'outcome': 'right'}
  assert contact._share(left) == pytest.approx(0.4 / (0.4 + 0.3))
  contact.entries['b'] = {'outcome': 'right'}
  assert contact._share(left) == 1
  contact.entries['b'] = {'outcome': 'late'}
  assert contact._share(left) < 1


def test_time_is_divided_among_stages(call, tmp_path, monkeypatch):
  monkeypatch.setattr(mode, '_LEAST_S', 1e9)  # No time for anything.
  monkeypatch.setattr(stages, 'before', lambda *_: [])
  code, *_ = call(stage('one', 'pass'))
  assert code == 75 and state(tmp_path)['device']['outcome'] == 'late'


def test_folder_of_another_machine_is_refused(call, tmp_path):
  assert call(stage('one', 'pass'))[0] == 0
  before = (tmp_path / 'run' / page.PAGE).read_bytes()
  code, _, err = call(stage('one', 'pass'), device={**DEVICE, 'devices': 8})
  assert code == 2 and 'holds the first contact of 1 and this is 8' in err
  assert (tmp_path / 'run' / page.PAGE).read_bytes() == before


def test_run_dir_is_asked_for(capsys):
  assert main.main(['zaya_jax', '--mode=contact']) == 2
  assert '--mode=contact needs --run_dir=' in capsys.readouterr().err


@pytest.mark.long  # All stages, as they are.
def test_whole_contact_on_a_cpu(tmp_path):
  words = '--flagfile=configs/zaya1_8b.flags', f'--run_dir={tmp_path}'
  done = subprocess.run(
    [sys.executable, '-m', 'zaya_jax.main', '--mode=contact', *words]
    + ['--contact.minutes=10'],
    env={k: v for k, v in os.environ.items() if k != 'XLA_FLAGS'},
    capture_output=True,
    text=True,
  )
  # How many kernels there is time for is the machine's affair.
  assert done.returncode in (0, 75), done.stderr
  found = json.loads((tmp_path / 'contact.json').read_text())['stages']
  names = 'preflight device kernels engines machine plan training'.split()
  assert [*found] == names
  late = {name for name in names if found[name]['outcome'] == 'late'}
  right = {name for name in names if found[name]['outcome'] == 'right'}
  assert late <= {'kernels', 'engines', 'machine'}
  assert right | late == set(names)
  assert (done.returncode == 75) == bool(late)
