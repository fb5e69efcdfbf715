# SPDX-License-Identifier: Apache-2.0
"""What a supervisor prints, and how it counts time and steps."""

import pytest

from zaya_jax.aegis.decide import events
from zaya_jax.aegis.decide import state as state_lib
from zaya_jax.aegis.supervisor import account

STATE = state_lib.start(('a', 'b'), spares=('c',))


@pytest.fixture
def clock(monkeypatch):
  """Seconds of both clocks, which the test sets."""
  clock = {'monotonic': 1000.0, 'time': 1e9}
  for name in clock:
    monkeypatch.setattr(account.time, name, lambda name=name: clock[name])
  return clock


def failed(step, kind='exit', **more):
  return events.Event(time_s=0.0, kind=kind, step=step, node='b', **more)


def test_time_and_steps_that_a_failure_costs_are_counted(clock, capsys):
  ledger = account.Ledger()
  restart = events.Action(kind='restart', reason='rank 1 ended')
  for at, do in (
    (2.0, lambda: ledger.begin(STATE, None, 'here:1')),
    (12.0, lambda: ledger.running(STATE)),
    (80.0, lambda: ledger.seen(failed(23), restart)),
    (81.0, lambda: ledger.begin(STATE, 20, 'here:2')),
    (92.0, lambda: ledger.running(STATE)),
    (102.0, lambda: ledger.end(0)),
  ):
    clock['monotonic'] = 1000.0 + at
    do()
  assert capsys.readouterr().out.splitlines() == [
    'aegis: generation 0 starts on a, b (here:1); spare: c',
    'aegis: generation 0 trains after 10.0 s',
    'aegis: rank 1 ended -> restart',
    'aegis: generation 0 goes on from step 20 on a, b (here:2); spare: c',
    'aegis: generation 0 trains, 12.0 s after the failure; 3 steps are done '
    'again',
    # 10 and 12 of 102 seconds are lost.
    'aegis: exit code 0 after 102.0 s; generations: 2; 78.4% of the time in '
    'training; 3 steps done twice',
  ]


def test_second_failure_in_recovery_is_counted_from_the_first(clock, capsys):
  ledger = account.Ledger()
  ledger.begin(STATE, None, 'here:1')
  ledger.running(STATE)
  clock['monotonic'] += 10
  ledger.seen(failed(9), events.Action(kind='restart'))
  clock['monotonic'] += 5
  ledger.seen(failed(None, 'agent_lost'), events.Action(kind='replace_node'))
  ledger.begin(STATE, 5, 'here:3')
  clock['monotonic'] += 1
  ledger.running(STATE)
  assert '6.0 s after the failure; 4 steps' in capsys.readouterr().out


def test_no_step_is_done_again_after_a_later_checkpoint(clock, capsys):
  ledger = account.Ledger()
  for step in (None, 5):  # No rank had told that it entered a step.
    ledger.begin(STATE, step, 'here:1')
    ledger.running(STATE)
  assert '; 0 steps are done again' in capsys.readouterr().out


def test_ordinary_events_are_not_told(clock, capsys):
  ledger = account.Ledger()
  ledger.seen(failed(3, 'sealed'), events.Action(kind='ignore'))
  assert capsys.readouterr().out == ''
  ledger.seen(failed(3, 'agent_lost'), events.Action(kind='replace_node'))
  assert capsys.readouterr().out == 'aegis: agent_lost on b -> replace node\n'


def test_calendar_that_is_set_back_does_not_matter(clock):
  ledger = account.Ledger()
  assert ledger.now_s() == 1e9
  clock['time'] -= 3600
  clock['monotonic'] += 5
  assert ledger.now_s() == 1e9 + 5


def test_many_nodes_are_a_few_names_and_a_number(capsys):
  names = tuple(f'n{i}' for i in range(128))
  state = state_lib.start(names, spares=('s',))
  account.Ledger().begin(state, None, 'n0:1')
  assert capsys.readouterr().out == (
    'aegis: generation 0 starts on n0, n1 … n127 (128 nodes) (n0:1); spare: s\n'
  )
