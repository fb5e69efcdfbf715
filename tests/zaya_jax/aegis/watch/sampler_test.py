# SPDX-License-Identifier: Apache-2.0
"""Tools of a node that are asked now and then: fast, slow, absent, broken."""

import json
import os
import signal
import sys

import pytest

from tests.support import telemetry
from zaya_jax.aegis.watch import rules, sampler
from zaya_jax.aegis.watch.telemetry import gpus, nics, rdma
from zaya_jax.config import fields

RULES = rules.load()


def until(sample, time_s, found):
  """Polls at one time until `found` is true of the events so far."""
  seen = []
  while not found(seen):
    seen += sample.poll(time_s)
  return seen


def idle(sample):
  return all(question._process is None for question in sample._questions)


@pytest.fixture
def make(tmp_path):
  """A function: a reader -> a sampler of a file, and a way to answer once."""
  made = []

  def make(read, **more):
    path = tmp_path / 'answer'
    tool = sampler.Tool(('cat', str(path)), read)
    sample = sampler.Sampler('n7', RULES, [tool], every_s=30.0, **more)
    made.append(sample)
    clock = [0.0]

    def answer(text):
      path.write_text(text)
      clock[0] += 30.0
      seen = sample.poll(clock[0])
      return seen + until(sample, clock[0], lambda _: idle(sample))

    return sample, answer

  yield make
  for sample in made:
    sample.close()


@pytest.mark.parametrize(
  'read, name, kinds',
  [
    (
      gpus.metric,
      'amd_smi_metric.json',
      {'gpu_counter_uncorrectable', 'gpu_counter_deferred', 'gpu_counter_xgmi'},
    ),
    (gpus.pages, 'amd_smi_pages.json', {'gpu_counter_bad_pages'}),
    (gpus.ras, 'amd_smi_ras.json', {'gpu_counter_ras_disabled'}),
    (nics.ethtool, 'ethtool.txt', {'nic_counter_flapping'}),
    (rdma.statistic, 'rdma.json', {'rdma_counter_unrecoverable'}),
  ],
)
def test_shipped_rules_see_faults_and_no_others(make, read, name, kinds):
  stem, form = name.split('.')
  clear = telemetry.text(f'{stem}_clear.{form}')
  _, answer = make(read)
  assert answer(clear) == answer(clear) == []
  seen = answer(telemetry.text(f'{stem}_faults.{form}'))
  assert {event.kind for event in seen} == kinds
  assert {(e.node, e.source) for e in seen} == {('n7', 'metrics')}
  assert answer(telemetry.text(f'{stem}_faults.{form}')) == []


def test_port_that_stays_down_replaces_the_node(make):
  up = telemetry.text('infiniband_clear.txt')
  _, answer = make(rdma.ports)
  down = up.replace('4: ACTIVE', '1: DOWN')
  assert answer(up) == answer(down) == answer(down) == []
  (event,) = answer(down)  # A minute later.
  assert (event.kind, event.action) == ('rdma_port_down', 'replace_node')


def test_port_that_is_back_in_time_costs_nothing(make):
  up = telemetry.text('infiniband_clear.txt')
  _, answer = make(rdma.ports)
  down = up.replace('4: ACTIVE', '1: DOWN')
  for text in (up, down, up, up, up, up):
    assert answer(text) == []


def test_broken_answer_is_told_once_and_forgets_nothing(make):
  clear = telemetry.text('amd_smi_metric_clear.json')
  _, answer = make(gpus.metric)
  assert answer(clear) == []
  (event,) = answer(clear[:500])
  assert (event.kind, event.node, event.action) == (
    'cannot_watch',
    'n7',
    'warn',
  )
  assert event.detail.endswith('answer: it is no JSON')
  assert answer(clear[:400]) == []
  # What has risen meanwhile is seen.
  kinds = {e.kind for e in answer(telemetry.text('amd_smi_metric_faults.json'))}
  assert 'gpu_counter_uncorrectable' in kinds


def test_answer_with_less_in_it_forgets_nothing(make):
  _, answer = make(gpus.metric)
  ecc = lambda gpu, n: {'gpu': gpu, 'ecc': {'total_uncorrectable_count': n}}
  assert answer(json.dumps([ecc(0, 0), ecc(1, 0)])) == []
  assert answer(json.dumps([ecc(1, 0)])) == []
  (event,) = answer(json.dumps([ecc(0, 1), ecc(1, 0)]))
  assert 'gpu_id="0"' in event.detail


def test_counter_that_was_reset_counts_from_there(make):
  _, answer = make(gpus.metric)
  count = lambda n: json.dumps(
    [{'gpu': 0, 'ecc': {'total_uncorrectable_count': n}}]
  )
  assert answer(count(5)) == answer(count(0)) == []
  (event,) = answer(count(1))
  assert event.kind == 'gpu_counter_uncorrectable'


def test_tool_that_does_not_exist_is_told_once():
  tool = sampler.Tool(('no-such-tool',), gpus.metric)
  sample = sampler.Sampler('n7', RULES, [tool], every_s=30.0)
  (event,) = sample.poll(0.0)
  assert event.detail == 'no-such-tool: No such file or directory'
  assert sample.poll(31.0) == sample.poll(62.0) == []
  (event,) = sample.poll(3700.0)  # An hour later.


def test_tool_that_fails_says_its_code():
  tool = sampler.Tool(('sh', '-c', 'echo no driver; exit 3'), gpus.metric)
  sample = sampler.Sampler('n7', RULES, [tool])
  (event,) = until(sample, 0.0, bool)
  assert event.detail.endswith('exit code 3: it is no JSON')


def test_tool_that_hangs_is_ended_and_holds_nobody():
  hang = (sys.executable, '-c', 'import time; time.sleep(3600)')
  tools = [sampler.Tool(hang, gpus.metric), sampler.Tool(('true',), rdma.ports)]
  sample = sampler.Sampler('n7', RULES, tools, every_s=30.0, limit_s=20.0)
  assert sample.poll(0.0) == []
  pid = sample._questions[0]._process.pid
  seen = until(sample, 21.0, bool)
  assert seen[0].detail.endswith('it does not answer within 20 s')
  until(sample, 21.0, lambda _: sample._questions[0]._process is None)
  with pytest.raises(ProcessLookupError):
    os.kill(pid, 0)
  sample.close()


def test_tool_that_cannot_be_ended_is_not_started_again(monkeypatch):
  """As one in state D, which waits for a device."""
  hang = (sys.executable, '-c', 'import time; time.sleep(3600)')
  sample = sampler.Sampler('n7', RULES, [sampler.Tool(hang, gpus.metric)])
  sample.poll(0.0)
  process = sample._questions[0]._process
  with monkeypatch.context() as patch:
    patch.setattr(sampler.os, 'killpg', lambda *_: None)
    seen = [event for t in (21.0, 51.0, 81.0) for event in sample.poll(t)]
  assert len(seen) == 1 and sample._questions[0]._process is process
  sample.close()
  assert process.wait(60) == -signal.SIGKILL


def test_tool_that_was_killed_is_told():
  tool = sampler.Tool(('sh', '-c', 'kill -9 $$'), gpus.metric)
  sample = sampler.Sampler('n7', RULES, [tool])
  (event,) = until(sample, 0.0, bool)
  assert event.detail.endswith('signal 9 ended it')


def test_tools_have_names():
  assert sampler.tools(()) == []
  assert [t.command[0] for t in sampler.tools(('rdma', 'ip'))] == ['rdma', 'ip']
  with pytest.raises(
    fields.UsageError, match='nvidia is unknown; known are amd'
  ):
    sampler.tools(('nvidia',))


def test_this_machine_has_devices():
  (tool,) = sampler.tools(('ip',))
  sample = sampler.Sampler('n7', RULES, [tool])
  sample.poll(0.0)
  seen = until(sample, 0.0, lambda _: idle(sample))
  assert seen == [] or 'No such file' in seen[0].detail


def test_scripts_list_what_there_is(tmp_path):
  """Those of ethtool and infiniband, on folders in place of /sys."""
  card = tmp_path / 'net' / 'eth0' / 'device'
  card.mkdir(parents=True)
  (card / 'driver').symlink_to('/drivers/mlx5_core')
  (tmp_path / 'net' / 'lo').mkdir()
  (tmp_path / 'bin').mkdir()
  fake = tmp_path / 'bin' / 'ethtool'
  fake.write_text('#!/bin/sh\necho "     link_down_events_phy: 3"\n')
  fake.chmod(0o755)
  (tool,) = sampler.tools(('ethtool',))
  script = tool.command[2].replace('/sys/class/net', f'{tmp_path}/net')
  out = telemetry.shell(script, PATH=f'{tmp_path}/bin:{os.environ["PATH"]}')
  assert tool.read(out) == {'nic_link_downs{device="eth0"}': 3}
  port = tmp_path / 'ib' / 'mlx5_0' / 'ports' / '1'
  (port / 'counters').mkdir(parents=True)
  (port / 'state').write_text('4: ACTIVE\n')
  (port / 'counters' / 'link_downed').write_text('2\n')
  (tool,) = sampler.tools(('infiniband',))
  out = telemetry.shell(
    tool.command[2].replace('/sys/class/infiniband', f'{tmp_path}/ib')
  )
  found = tool.read(out.replace(f'{tmp_path}/ib', '/sys/class/infiniband'))
  assert found['rdma_link_downs{device="mlx5_0",port="1"}'] == 2
  assert found['rdma_port_up{device="mlx5_0",port="1"}'] == 1
