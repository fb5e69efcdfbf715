# SPDX-License-Identifier: Apache-2.0
"""Supervised runs whose nodes have faults, in what the kernel and hooks say."""

import itertools
import json
import pathlib
import sys
import threading
import time

import pytest

from tests.support import fake_rank
from zaya_jax import config as config_lib
from zaya_jax.aegis.supervisor import incidents, replay, supervisor
from zaya_jax.runtime import faults

PROGRAM = (sys.executable, '-m', fake_rank.__name__)
ECC = (
  '{},1,2,-;amdgpu 0000:05:00.0: amdgpu: 1 new uncorrectable hardware errors '
  'detected in umc block\n'
)


@pytest.fixture
def run(tmp_path):
  """Runs with --aegis flags -> exit code, incidents; all decided again."""

  def run(meanwhile=lambda over: None, **aegis):
    logs = (f'kern:{tmp_path}/kmsg.{{node}}',)
    aegis = {'nodes': ('a', 'b', 'c'), 'spares': 1, 'logs': logs, **aegis}
    config = config_lib.Config(
      run_dir=str(tmp_path / 'run'), aegis=config_lib.AegisConfig(**aegis)
    )
    over = threading.Event()
    helper = threading.Thread(target=meanwhile, args=(over,))
    helper.start()
    try:
      code = supervisor.supervise(config, PROGRAM)
    finally:
      over.set()
      helper.join()
    path = tmp_path / 'run' / 'incidents.jsonl'
    assert replay.replay(path) == []
    lines = path.read_text().splitlines()
    rows = [json.loads(line) for line in lines if line]
    return code, {row['kind']: row for row in rows}

  return run


@pytest.mark.parametrize(
  'fault, priority, replaced',
  [
    ('freeze', 3, True),  # All wait for rank 0 until the line is seen.
    ('stall', 11, False),  # They wait for five seconds.
  ],
)
def test_line_of_the_kernel_replaces_the_node(
  run, tmp_path, monkeypatch, fault, priority, replaced
):
  monkeypatch.setenv(faults.VARIABLE, f'{fault}@step:5:0:1')

  def write(over):
    while not over.wait(0.01):
      if list((tmp_path / 'run').glob('at/1/1.5')):
        (tmp_path / 'kmsg.b').write_text(ECC.format(priority))
        return

  code, seen = run(
    write, drain=f'touch {tmp_path}/drained.{{node}}', step_limit_s=600.0
  )
  assert code == 0
  assert (tmp_path / 'kmsg.b').exists()
  assert (tmp_path / 'drained.b').exists() == replaced
  if replaced:
    row = seen['gpu_memory_uncorrectable']
    assert (row['node'], row['done']['kind']) == ('b', 'replace_node')
  else:
    assert set(seen) == {'supervise', 'running', 'sealed', 'done'}


def test_node_that_is_not_healthy_is_passed_over(run, tmp_path):
  (tmp_path / 'bad.b').touch()
  code, seen = run(health=f'test ! -e {tmp_path}/bad.{{node}}')
  assert code == 0
  assert seen['unhealthy']['node'] == 'b'
  assert seen['supervise']['state']['nodes'] == ['a', 'b']
  assert not list(pathlib.Path(tmp_path).glob('run/at/1'))


def test_run_shrinks_to_what_divides_its_work(run, tmp_path):
  for name in 'bde':
    (tmp_path / f'bad.{name}').touch()
  code, seen = run(
    nodes=tuple('abcde'),
    spares=1,
    shrink=True,
    health=f'test ! -e {tmp_path}/bad.{{node}}',
  )
  assert code == 0
  assert seen['unhealthy']['done']['kind'] == 'replace_node'
  state = incidents.last_state(tmp_path / 'run' / 'incidents.jsonl')
  # Two healthy nodes of four are left; three would not have been allowed.
  assert len(state.nodes) == 2 and set(state.nodes) <= {'a', 'c'}


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
