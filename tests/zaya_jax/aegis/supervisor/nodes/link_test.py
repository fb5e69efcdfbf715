# SPDX-License-Identifier: Apache-2.0
"""Orders to an agent and reports from it, whatever becomes of it."""

import asyncio
import json
import os
import signal
import sys
import tracemalloc

import pytest

from tests.support import fake_agent
from zaya_jax.aegis.agent import protocol
from zaya_jax.aegis.supervisor.nodes import link

AGENT = f'{sys.executable} -m {fake_agent.__name__}'
RANK = {
  'rank': 0,
  'pid': 7,
  'entered': 3,
  'done': 2,
  'looks': 0,
  'late': 0,
  'phase': 'step',
  'process': 'S',
  'why': '',
  'failed_ns': None,
  'exit_code': None,
}
SEEN = {
  'kind': 'seen',
  'generation': 1,
  'ranks': [],
  'event': {'kind': 'ecc', 'node': 'another'},
}


def report(kind, generation=1, **more):
  return {'kind': kind, 'generation': generation, 'ranks': [RANK], **more}


@pytest.fixture
def connected(tmp_path):
  """Runs a coroutine with the link to an agent that answers orders so."""

  def run(body, **answers):
    (tmp_path / 'a.json').write_text(json.dumps(answers))

    async def main():
      woken = asyncio.Event()
      made = link.Link('a', f'{AGENT} {tmp_path} {{node}}', woken.set)
      made.woken = woken
      made.expect(1, range(1))
      try:
        async with asyncio.timeout(60):
          await body(made)
      finally:
        if not made._input.closed:
          made.forget()
        made.end()
        made._popen.wait()

    asyncio.run(main())

  return run


async def until(made, is_so):
  """Waits for news until something is so."""
  while not is_so():
    await made.woken.wait()
    made.woken.clear()


def test_orders_arrive_as_they_were_given(connected, tmp_path):
  async def body(made):
    made.send('setup', ranks=2)
    made.send('start', places=[{'rank': 0}])
    await until(made, lambda: made.ranks)
    assert made.ranks == [RANK] and made.version == protocol.VERSION
    orders = (tmp_path / 'a.orders').read_text().splitlines()
    assert list(map(json.loads, orders)) == [
      {'do': 'setup', 'ranks': 2},
      {'do': 'start', 'places': [{'rank': 0}]},
    ]
    made.expect(2, range(1))
    assert made.ranks == []  # The new ones have told nothing yet.

  connected(body, start=[report('started')])


def test_reports_on_other_generations_are_dropped(connected):
  async def body(made):
    made.send('start')
    await made.kill()
    assert made.hang is None
    made.expect(2, range(1))
    assert made.ranks == []

  late = report('hang', 0, phase='step', age_s=9.0, limit_s=1.0)
  connected(body, start=[late], kill=[late, report('killed')])


def test_agent_is_believed_about_its_own_node_alone(connected):
  async def body(made):
    made.send('start')
    await until(made, lambda: made.said)
    assert made.ranks == []
    await made.kill()
    assert made.seen() == [{'kind': 'ecc', 'node': 'a'}]
    assert made.seen() == []

  other = {**report('status'), 'ranks': [{**RANK, 'rank': 5}]}
  connected(body, start=[other, SEEN], kill=[report('killed')])


BANNER = 'Welcome to node a!\n\x1b[1mAuthorized \xff users only\n{"kind": 3}\n'


def test_what_is_no_report_is_quoted_once_and_hides_nothing(connected):
  async def body(made):
    await made.kill()
    assert made.version and not made.lost
    assert made.said == 'Welcome to node a!'

  deep = '[' * 60_000 + '\n'
  first = [BANNER, 'null\n[]\n"x"\n', deep, fake_agent.HELLO]
  connected(body, nothing=first, kill=['junk\n', report('killed')])


def test_flood_without_an_end_of_line_takes_bounded_memory(connected):
  async def body(made):
    tracemalloc.start()
    await made.kill()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20
    assert made._lines.cut > 15_000_000
    assert made.said.startswith('xxxx')

  flood = 'x' * 16_000_000
  connected(body, kill=[flood, '\n', report('killed')])


def test_line_that_comes_in_pieces_is_one(connected):
  async def body(made):
    data = protocol.encode({**report('status'), 'sent': 1, 'why': 'ä€😀'})
    for i in range(len(data)):
      for line in made._lines.feed(data[i : i + 1]):
        assert made._take(protocol.report(line))
    assert made.ranks == [RANK]

  connected(body)


def test_agent_that_ends_is_lost(connected):
  async def body(made):
    os.kill(made.pid, signal.SIGKILL)
    await until(made, lambda: made.lost)
    made.send('kill')  # Nobody hears it.
    assert made.kill().cancelled()

  connected(body)


def test_agent_that_reads_nothing_blocks_nobody_and_is_lost(
  connected, monkeypatch
):
  monkeypatch.setattr(link, '_UNSENT', 2**18)

  async def body(made):
    os.kill(made.pid, signal.SIGSTOP)
    for _ in range(100):  # More than a pipe holds.
      made.send('start', places='x' * 10_000)
    assert 'reads no orders' in made.lost

  connected(body)


def test_order_that_does_not_fit_is_sent_later(connected, tmp_path):
  async def body(made):
    await until(made, lambda: made.version)
    os.kill(made.pid, signal.SIGSTOP)
    made.send('start', places='x' * 300_000)
    os.kill(made.pid, signal.SIGCONT)
    await made.kill()
    first, second = (tmp_path / 'a.orders').read_text().splitlines()
    assert len(json.loads(first)['places']) == 300_000
    assert json.loads(second) == {'do': 'kill'}

  connected(body, kill=[report('killed')])


def test_a_frozen_agent_is_silent(connected, monkeypatch):
  async def body(made):
    assert not made.is_silent
    later = link.time.monotonic() + link._SILENCE_S + 1
    with monkeypatch.context() as patched:
      patched.setattr(link.time, 'monotonic', lambda: later)
      assert made.is_silent

  connected(body)
