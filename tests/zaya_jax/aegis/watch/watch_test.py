# SPDX-License-Identifier: Apache-2.0
"""Logs and counters that an agent watches, whatever is written there."""

import pytest

from tests.support import telemetry
from zaya_jax.aegis.watch import rules, sampler, watch
from zaya_jax.aegis.watch.telemetry import gpus
from zaya_jax.config import fields

ECC = (
  '3,1,2,-;amdgpu 0000:05:00.0: amdgpu: 1 new uncorrectable hardware errors '
  'detected in umc block\n'
)


def test_watch_sees_a_line_and_what_was_not_cleared(tmp_path):
  log = tmp_path / 'kmsg'
  log.touch()
  looking = watch.Watch('n7', rules.load(), logs=[('kern', str(log))])
  down = '3,1,3,-;ionic 0000:81:00.0 eth1: Link down\n'
  log.write_text('junk\n' + ECC + down)
  assert [e.kind for e in looking.poll(10.0)] == ['gpu_memory_uncorrectable']
  assert not looking.poll(39.0)
  assert [e.kind for e in looking.poll(41.0)] == ['nic_down']
  looking.close()


def test_what_cannot_be_read_is_told_once(tmp_path):
  looking = watch.Watch(
    'n7',
    rules.load(),
    logs=[('kern', '/proc/self/mem/{node}'), ('kern', str(tmp_path / 'none'))],
    metrics_url='http://127.0.0.1:9/metrics',
  )
  told = []
  while len(told) < 2:
    told += looking.poll(0.0)
  assert [(e.kind, e.action) for e in told] == [('cannot_watch', 'warn')] * 2
  assert not looking.poll(0.0)
  looking.close()


def test_tools_are_asked(tmp_path, monkeypatch):
  answer = tmp_path / 'answer'
  tool = sampler.Tool(('cat', str(answer)), gpus.metric)
  monkeypatch.setitem(sampler.TOOLS, 'amd_smi', (tool,))
  looking = watch.Watch('n7', rules.load(), telemetry=('amd_smi',))
  answer.write_text(telemetry.text('amd_smi_metric_clear.json'))
  (question,) = looking._sampler._questions
  seen, time_s = [], 0.0
  while not seen:
    seen = looking.poll(time_s)
    if question._process is None:  # It has answered, and is asked again.
      answer.write_text(telemetry.text('amd_smi_metric_faults.json'))
      time_s += 30.0
  assert 'gpu_counter_uncorrectable' in {event.kind for event in seen}
  looking.close()


def test_log_that_becomes_unreadable_is_told_once(tmp_path):
  log = tmp_path / 'kmsg'
  log.touch()
  looking = watch.Watch('n7', rules.load(), logs=[('kern', str(log))])
  log.unlink()
  log.mkdir()
  told = [event for i in range(4) for event in looking.poll(float(i))]
  assert [event.kind for event in told] == ['cannot_watch']
  looking.close()


@pytest.mark.parametrize(
  'log', ['kern', 'kern:', 'trainer:/x', '/dev/kmsg', '']
)
def test_wrong_log_is_refused(log):
  assert watch.parse(['kern:/dev/kmsg', 'journal:/a:b'])[1][1] == '/a:b'
  with pytest.raises(fields.UsageError, match=f'--aegis.logs={log}'):
    watch.parse([log])
