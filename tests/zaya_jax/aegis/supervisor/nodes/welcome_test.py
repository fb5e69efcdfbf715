# SPDX-License-Identifier: Apache-2.0
"""Nodes that come back."""

import asyncio
import threading

import pytest

from zaya_jax.aegis.supervisor.nodes import welcome


class Nodes:
  """Agents that say hello if they are told to."""

  def __init__(self):
    self.connected, self.tried, self.there = set(), 0, False

  def connect(self, node, *, spare):
    assert spare
    self.tried += 1
    self.connected.add(node)

  def disconnect(self, node):
    self.connected.remove(node)

  def is_ready(self, node):
    return self.there


@pytest.fixture
def clock(monkeypatch):
  now = [100.0]
  monkeypatch.setattr(welcome.time, 'monotonic', lambda: now[0])
  return now


def back(made, nodes=('a',)):
  return made.back(nodes, first_s=15.0, longest_s=60.0)


def test_absent_node_is_tried_less_and_less_often(clock):
  nodes = Nodes()
  made = welcome.Welcome(nodes, lambda node: '', 30.0)
  times = []
  for _ in range(400):
    before = nodes.tried
    assert back(made) == []
    if nodes.tried > before:
      times.append(clock[0])
      nodes.connected.clear()  # It did not start.
    clock[0] += 1
  assert times == [115.0, 130.0, 160.0, 220.0, 280.0, 340.0, 400.0, 460.0]


@pytest.mark.parametrize('why', ['', 'no GPU'])
def test_node_is_back_after_hello_and_health(clock, why):
  async def main():
    nodes = Nodes()
    made = welcome.Welcome(nodes, lambda node: why, 30.0)
    back(made)
    clock[0] += 15
    assert back(made) == [] and nodes.tried == 1
    assert back(made) == []  # It has not said hello.
    nodes.there = True
    assert back(made) == []  # It is being examined.
    while made.verdict('a') is None:
      await asyncio.sleep(0)
    assert back(made) == ([] if why else ['a'])
    assert nodes.connected == (set() if why else {'a'})

  asyncio.run(main())


def test_examination_that_does_not_end_is_a_reason():
  async def main():
    made = welcome.Welcome(Nodes(), lambda _: threading.Event().wait(), 0.01)
    while (why := made.verdict('a')) is None:
      await asyncio.sleep(0.01)
    assert 'does not end within 0.01 s' in why

  asyncio.run(main())
