# SPDX-License-Identifier: Apache-2.0
"""Lines and counters that become events, by the shipped rules and others."""

import json
import re

import pytest

from zaya_jax.aegis.watch import matcher, rules

SHIPPED = {rule.name: rule for rule in rules.load()}
ECC = (
  'amdgpu 0000:05:00.0: amdgpu: 1 new uncorrectable hardware errors detected '
  'in umc block'
)
DOWN, UP = 'ionic 0000:81:00.0 enp129s0: Link ', ' - 400 Gbps'


def record(text, priority=3):
  """A line of /dev/kmsg; below priority 8 it is the kernel's own."""
  return f'{priority},1234,56789,-;{text}'


def see(lines, source='kern', found=None, at=None):
  """Kinds, nodes and actions of lines, one second after each other."""
  match = matcher.Matcher(found or SHIPPED.values(), 'n7')
  events = []
  for number, line in enumerate(lines):
    time_s = float(number if at is None else at[number])
    line = record(line) if source == 'kern' else line
    events += match.due(time_s) + match.match(source, line, time_s=time_s)
  return [(event.kind, event.node, event.action) for event in events]


def one(rule):
  """The events of a rule without its counts and its grace."""
  action = rule.action
  return (rule.name, None if rule.scope == 'job' else 'n7', action)


def given(rule, line):
  """A line as its source has it."""
  if rule.source != 'journal':
    return line
  unit, _, text = line.partition(': ')
  return json.dumps({'_SYSTEMD_UNIT': unit, 'MESSAGE': text})


@pytest.mark.parametrize('name', SHIPPED)
def test_examples_are_seen_and_all_clears_are_not(name):
  rule = SHIPPED[name]
  counted = rule.count > 1 or rule.grace_s
  assert rule.examples or counted
  for line in rule.examples:
    seen = see([given(rule, line)], source=rule.source)
    assert (one(rule) in seen) != bool(counted)
    if counted:
      lines = [given(rule, line)] * rule.count
      at = [rule.within_s * i / rule.count for i in range(rule.count)]
      if rule.grace_s:
        lines, at = [line, 'later'], [0.0, rule.grace_s]
      assert one(rule) in see(lines, source=rule.source, at=at)
  for line in rule.all_clear:
    lines = [given(rule, line)] * 200
    assert one(rule) not in see(lines, source=rule.source)


@pytest.mark.parametrize(
  'line',
  [
    record(ECC, priority=8 + 3),  # A program that writes to /dev/kmsg.
    ECC,  # No record at all.
    record('python3[4242]: ' + ECC),
    record('step 7\\n' + ECC),
    record('\x1b[2K\r' + ECC),
    record('Nov 21 12:00:00 n7 kernel: ' + ECC),
    f'3,1,2\n{record(ECC)}',
  ],
)
def test_forged_lines_are_no_faults_of_a_node(line):
  match = matcher.Matcher(SHIPPED.values(), 'n7')
  assert not match.match('kern', line, time_s=0.0)


def test_what_a_trainer_prints_never_acts_on_a_node():
  for rule in SHIPPED.values():
    for line in rule.examples:
      for _, node, action in see([line, record(line)], source='trainer'):
        assert node is None and action in ('ignore', 'warn')


def test_journal_is_believed_where_nobody_can_forge_it():
  entries = {
    'kernel': {'_TRANSPORT': 'kernel'},
    'syslog': {'_TRANSPORT': 'syslog', 'SYSLOG_IDENTIFIER': 'kernel'},
    'forged': {'TRANSPORT': 'kernel', '_SYSTEMD_UNIT': 'amdgpu'},
    'binary': {'_TRANSPORT': 'kernel', 'MESSAGE': [1, 2]},
  }
  for name, entry in entries.items():
    seen = see([json.dumps({'MESSAGE': ECC} | entry)], 'journal')
    assert bool(seen) == (name == 'kernel')
  assert not see(['[' * 10_000, '7', '', '{'], 'journal')
  disk = 'Device: /dev/nvme0n1, FAILED SMART self-check.'
  for unit, action in (('smartd.service', ['checkpoint_and_drain']), ('x', [])):
    line = json.dumps({'MESSAGE': disk, '_SYSTEMD_UNIT': unit})
    assert [a for *_, a in see([line], 'journal')] == action


def test_link_that_comes_back_in_time_costs_nothing():
  lines = [DOWN + 'down', DOWN + 'up' + UP, 'x', 'x']
  assert not see(lines, at=[0, 20, 31, 999])


def test_link_that_stays_down_replaces_the_node():
  lines = [DOWN + 'down', 'x', 'x']
  assert see(lines, at=[0, 29, 31]) == [('nic_down', 'n7', 'replace_node')]


def test_grace_begins_with_the_first_line():
  lines = [DOWN + 'down', DOWN + 'down', 'x']
  assert see(lines, at=[0, 20, 31]) == [('nic_down', 'n7', 'replace_node')]


def test_another_link_that_comes_up_does_not_help():
  lines = [DOWN + 'down', DOWN.replace('81', '82') + 'up' + UP, 'x']
  assert see(lines, at=[0, 1, 31]) == [('nic_down', 'n7', 'replace_node')]


def test_link_that_flaps_replaces_the_node():
  flap = [DOWN + 'down', DOWN + 'up' + UP]
  assert not see(flap * 3)
  assert see(flap * 4) == [('nic_flapping', 'n7', 'replace_node')]
  assert not see(flap * 4, at=[400.0 * (i // 2) + i % 2 for i in range(8)])


def test_burst_of_corrected_errors_drains_and_few_only_warn():
  line = SHIPPED['gpu_memory_corrected'].examples[0]
  actions = {action for _, _, action in see([line] * 49)}
  assert actions == {'warn'}
  actions = [action for _, _, action in see([line] * 50)]
  assert actions.count('checkpoint_and_drain') == 1


def test_flood_of_lines_is_told_a_few_times():
  lines = [ECC.replace('05', f'{i % 256:02x}') for i in range(10_000)]
  assert len(see(lines, at=[0.0] * len(lines))) <= 10


def test_memory_is_bounded():
  match = matcher.Matcher(SHIPPED.values(), 'n7')
  for i in range(2000):
    line = record(DOWN.replace('0000', f'{i:04x}') + 'down')
    match.match('kern', line, time_s=float(i))
  assert all(len(known) <= 256 for known in match._memories.values())


def test_lines_are_escaped_and_cut():
  match = matcher.Matcher(SHIPPED.values(), 'n7')
  line = record(ECC + '\x1b[31m\r\n' + 'x' * 5000)
  (event,) = match.match('kern', line, time_s=0.0)
  assert event.detail.isprintable() and len(event.detail) == 500


def rule(**more):
  """A rule on lines 'card N is bad'."""
  return rules.Rule(
    name='bad',
    source='kern',
    pattern=re.compile('card (?P<who>.+) is bad'),
    severity='warn',
    scope='node',
    **more,
  )


def told_at(found, lines, times):
  """The times at which lines bring about events of one rule."""
  match = matcher.Matcher([found], 'n7')
  return [
    time_s
    for line, time_s in zip(lines, times, strict=True)
    if match.match('kern', record(line), time_s=time_s)
  ]


@pytest.mark.parametrize('priority', [0, 7, 8, 15])
def test_only_facility_0_is_the_kernel(priority):
  found = matcher.understand('kern', record(ECC, priority=priority))
  assert found == (('kern', ECC) if priority < 8 else None)


def test_same_card_is_told_again_after_the_debounce():
  found = rule(debounce_s=30.0, count=2, within_s=100.0)
  times = [float(t) for t in range(70)]
  lines = ['card 1 is bad'] * 70
  assert told_at(found, lines, times) == [1, 31, 61]


def test_steady_stream_is_told_ten_times_a_minute():
  times = [float(t) for t in range(180)]
  lines = [f'card {t} is bad' for t in range(180)]
  told = told_at(rule(), lines, times)
  assert told == [t for t in times if t % 60 < 10]


def test_slow_stream_is_told_whole():
  times = [7.0 * t for t in range(100)]
  lines = [f'card {t} is bad' for t in range(100)]
  assert told_at(rule(), lines, times) == times
