# SPDX-License-Identifier: Apache-2.0
"""What a supervisor exports for Prometheus."""

import dataclasses
import types

import prometheus_client
import pytest

from zaya_jax.aegis.decide import events
from zaya_jax.aegis.decide import state as state_lib
from zaya_jax.aegis.notify import metrics

STATE = state_lib.start(('a', 'b'), spares=('c',))


def text(made):
  return prometheus_client.generate_latest(made.registry).decode()


def values(made):
  """The value of each metric, as a Prometheus server reads the text."""
  lines = [line for line in text(made).splitlines() if line[0] != '#']
  return {name: float(value) for name, value in map(str.split, lines)}


def gauges(made):
  """The same of the state alone."""
  return {
    name.removeprefix('zaya_jax_'): value
    for name, value in values(made).items()
    if '{' not in name and '_age_' not in name
  }


def test_gauges_are_those_of_now():
  state = [STATE]
  made = metrics.Metrics(lambda: state[0])
  assert gauges(made) == {
    'absent': 0,
    'alarm': 0,
    'draining': 0,
    'failed_saves': 0,
    'fruitless_generations': 0,
    'generation': 0,
    'incidents_last_hour': 0,
    'nodes': 2,
    'nodes_wanted': 2,
    'quarantined': 0,
    'rollbacks': 0,
    'running': 0,
    'sealed_step': 0,
    'spares': 1,
    'step': 0,
  }
  state[0] = dataclasses.replace(
    STATE,
    generation=3,
    running=True,
    alarm='no node is left',
    sealed=(5, 40),
    nodes=('c',),
    spares=(),
    quarantine=('a', 'b'),
    absent=('d', 'e', 'f'),
    restarts=(1.0,) * 4,
    fruitless=5,
    rollbacks=(1,) * 6,
    failed_saves=7,
    draining='c',
  )
  expected = [3, 1, 1, 40, 1, 2, 0, 2, 3, 4, 5, 6, 7, 1, 0]
  assert list(gauges(made).values()) == expected
  assert '# TYPE zaya_jax_generation gauge\n' in text(made)


@pytest.fixture
def fresh(monkeypatch):
  """Metrics, and a clock that tests move."""
  clock = [100.0]
  monkeypatch.setattr(
    metrics, 'time', types.SimpleNamespace(monotonic=lambda: clock[0])
  )
  return metrics.Metrics(lambda: STATE, ('exit', 'nic_down')), clock


def test_age_counts_from_the_last_finished_step(fresh):
  made, clock = fresh
  age = lambda: values(made)['zaya_jax_step_age_seconds']
  clock[0] = 107.0
  assert age() == 7
  made.finished(5)
  clock[0] = 110.0
  assert age() == 3
  made.finished(5)  # The same, told again.
  made.finished(0)  # A new generation, which has none yet.
  clock[0] = 112.0
  assert age() == 5
  made.finished(4)  # It does a step again.
  assert age() == 0
  assert values(made)['zaya_jax_step'] == 4


def test_looks_of_the_supervisor_have_an_age(fresh):
  made, clock = fresh
  age = lambda: values(made)['zaya_jax_look_age_seconds']
  clock[0] = 107.0
  assert age() == made.look_age_s == 7
  made.finished(0)
  assert age() == 0


def test_incidents_are_counted_by_kind_and_action(fresh):
  made, _ = fresh
  count = lambda kind, action: values(made)[
    f'zaya_jax_incidents_total{{action="{action}",kind="{kind}"}}'
  ]
  # Prometheus sees no rise from nothing to one, so it starts with zero.
  assert count('nic_down', 'replace_node') == 0
  seen = lambda kind: events.Event(time_s=1.0, kind=kind)
  made.take(seen('nic_down'), events.Action(kind='replace_node'))
  made.take(seen('nic_down'), events.Action(kind='replace_node'))
  made.take(seen('exit'), events.Action(kind='restart'))
  made.take(seen('exit'), events.Action(kind='ignore'))
  assert count('nic_down', 'replace_node') == 2
  assert count('exit', 'restart') == 1
  assert sum(v for k, v in values(made).items() if '{' in k) == 3
  assert '# TYPE zaya_jax_incidents_total counter\n' in text(made)
