# SPDX-License-Identifier: Apache-2.0
"""Supervised runs whose nodes have faults, in what the kernel and hooks say."""

import itertools
import json
import pathlib
import sys
import threading
import time

import pytest

from tests.zaya_jax.aegis import fake_rank
from zaya_jax import config as config_lib
from zaya_jax.aegis import faults, replay, supervisor

PROGRAM = (sys.executable, '-m', fake_rank.__name__)
ECC = (
  '{},1,2,-;amdgpu 0000:05:00.0: amdgpu: 1 new uncorrectable hardware errors '
  'detected in umc block\n'
)


@pytest.fixture
def run(tmp_path):
  """Runs with --aegis flags -> exit code, incidents; all decided again."""

  def run(meanwhile=None, **aegis):
    logs = (f'kern:{tmp_path}/kmsg.{{node}}',)
    aegis = {'nodes': ('a', 'b', 'c'), 'spares': 1, 'logs': logs, **aegis}
    config = config_lib.Config(
      run_dir=str(tmp_path / 'run'), aegis=config_lib.AegisConfig(**aegis)
    )
    helper = threading.Thread(target=meanwhile or (lambda: None))
    helper.start()
    code = supervisor.supervise(config, PROGRAM)
    helper.join()
    path = tmp_path / 'run' / 'incidents.jsonl'
    assert replay.replay(path) == []
    lines = path.read_text().splitlines()
    rows = [json.loads(line) for line in lines if line]
    return code, {row['kind']: row for row in rows}

  return run


@pytest.mark.parametrize('priority, replaced', [(3, True), (11, False)])
def test_line_of_the_kernel_replaces_the_node(
  run, tmp_path, monkeypatch, priority, replaced
):
  # All wait for rank 0 until the line is seen, or the limit is over.
  monkeypatch.setenv(faults.VARIABLE, 'freeze@step:5:0:1')

  def write():
    while not list((tmp_path / 'run').glob('at/1/1.5')):
      time.sleep(0.01)
    (tmp_path / 'kmsg.b').write_text(ECC.format(priority))

  code, seen = run(
    write,
    drain=f'touch {tmp_path}/drained.{{node}}',
    step_limit_s=600.0 if replaced else 1.0,
    phase_limit_s=600.0 if replaced else 1.0,
  )
  assert code == 0
  assert (tmp_path / 'drained.b').exists() == replaced
  if replaced:
    row = seen['gpu_memory_uncorrectable']
    assert (row['node'], row['done']['kind']) == ('b', 'replace_node')
  else:
    assert 'gpu_memory_uncorrectable' not in seen
    assert seen['hang']['done']['kind'] == 'restart'


def test_node_that_is_not_healthy_is_passed_over(run, tmp_path):
  (tmp_path / 'bad.b').touch()
  code, seen = run(health=f'test ! -e {tmp_path}/bad.{{node}}')
  assert code == 0
  assert seen['unhealthy']['node'] == 'b'
  assert seen['supervise']['state']['nodes'] == ['a', 'b']
  assert not list(pathlib.Path(tmp_path).glob('run/at/1'))


def test_calendar_that_jumps_changes_nothing(run, monkeypatch):
  jumps = itertools.cycle((3600.0, -3600.0, 0.0))
  true = time.time
  monkeypatch.setattr(time, 'time', lambda: true() + next(jumps))
  code, seen = run(step_limit_s=30.0)
  assert code == 0 and set(seen) == {'supervise', 'running', 'sealed', 'done'}
  assert abs(seen['done']['time'] - seen['running']['time']) < 60


def test_rule_with_an_error_starts_nothing(run, tmp_path):
  (tmp_path / 'mine.toml').write_text('[[rule]]\nname = "x"\n')
  with pytest.raises(config_lib.UsageError, match=r'mine\.toml, line 2: '):
    run(rules=(str(tmp_path / 'mine.toml'),))
  assert not (tmp_path / 'run' / 'at').exists()
  assert not (tmp_path / 'run' / 'incidents.jsonl').exists()
