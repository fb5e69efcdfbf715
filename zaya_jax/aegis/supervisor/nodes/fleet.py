# SPDX-License-Identifier: Apache-2.0
"""The agents of a run: one for each node, spares among them."""

import asyncio
import dataclasses
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

from zaya_jax import config as config_lib
from zaya_jax.aegis.agent import protocol
from zaya_jax.aegis.supervisor.nodes import link
from zaya_jax.runtime import supervised

_ANSWER_S = 8.0  # More than an agent gives its ranks to end.
_POLL_S = 0.02


@dataclasses.dataclass(frozen=True)
class Loss:
  """A node whose agent does not count any more.

  Attributes:
    node: its name.
    kind: of the event.
    why: for people.
    at: the time, by the monotonic clock.
  """

  node: str
  kind: Literal['agent_lost', 'not_started']
  why: str
  at: float


class Fleet:
  """Starts agents and ranks, and ends them; for use in a running loop.

  Args:
    config: of the run.
    command: that starts a rank.
    remaining_s: for how long the supervisor holds the run.
    wake: called when there is news.

  Attributes:
    nodes: of this generation.
    losses: nodes lost since the caller last took them away.
    has_spoken: whether any agent has ever said hello.
    safe_at: the monotonic time at which ranks of lost nodes are surely dead.
  """

  def __init__(
    self,
    config: config_lib.Config,
    command: list[str],
    remaining_s: Callable[[], float],
    wake: Callable[[], None],
  ):
    self._config, self._command = config.aegis, command
    self._remaining_s, self._wake = remaining_s, wake
    self._links: dict[str, link.Link] = {}
    self._left: list[link.Link] = []  # Their processes are to be waited for.
    self._promised: dict[str, float] = {}  # Until when ranks may live.
    self._acked: dict[str, int] = {}
    self._quoted: set[str] = set()
    self.nodes: tuple[str, ...] = ()
    self.losses: list[Loss] = []
    self.has_spoken = False
    self.safe_at = 0.0

  @property
  def connected(self) -> tuple[str, ...]:
    """Nodes with an agent, also those that it has not heard of yet."""
    return tuple(self._links)

  def is_ready(self, node: str) -> bool:
    """Whether its agent has said hello."""
    return node in self._links and bool(self._links[node].version)

  def connect(self, node: str, *, spare: bool) -> None:
    """Starts the agent of a node, unless it runs."""
    if node in self._links:
      return
    there = self._links[node] = link.Link(node, self._config.agent, self._wake)
    self._acked[node] = 0
    there.send(
      'setup',
      command=self._command,
      directory=os.getcwd(),
      node=node,
      spare=spare,
      aegis=dataclasses.asdict(self._config),
    )

  def disconnect(self, node: str) -> None:
    """Lets go of a node; what runs there ends."""
    there = self._links.pop(node)
    if self._promised.get(node, 0.0) > time.monotonic():
      self.safe_at = max(self.safe_at, self._promised.pop(node))
    there.forget()
    there.end()
    self._left.append(there)

  def begin(self, nodes: Sequence[str], place: supervised.Place) -> None:
    """Starts the ranks of a generation, in the order of its nodes.

    Args:
      nodes: their names; all are ready.
      place: of every rank, but for its number.
    """
    self.nodes, each = tuple(nodes), self._config.ranks_per_node
    for index, node in enumerate(nodes):
      places, ranks = [], range(index * each, (index + 1) * each)
      for i in ranks:
        environment = place.environment | {'JAX_PROCESS_ID': str(i)}
        mine = dataclasses.replace(place, rank=i, environment=environment)
        places.append(dataclasses.asdict(mine))
      self._links[node].expect(place.generation, ranks)
      self._acknowledge(node)
      self._links[node].send('start', places=places)

  def look(self) -> None:
    """Judges who is lost, and answers who has reported."""
    now = time.monotonic()
    for node, there in list(self._links.items()):
      if there.lost:
        self._lose(node, there.lost)
      elif there.version not in ('', protocol.VERSION):
        self._lose(
          node,
          f'its zaya_jax is {there.version}, the supervisor is '
          f'{protocol.VERSION}: install one version on all nodes',
        )
      elif not there.version:
        if now > there.started + self._config.start_limit_s:
          limit = f'--aegis.start_limit_s={self._config.start_limit_s:g}'
          self._lose(node, f'no word from it within {limit}')
      elif there.is_silent:
        self._lose(node, f'silent for {now - there.heard:.1f} s')
      else:
        self.has_spoken = True
        if there.sent != self._acked[node]:
          self._acknowledge(node)
    self._left = [there for there in self._left if there.exit_code() is None]

  def forgive(self) -> None:
    """Nobody was silent: the supervisor did not listen."""
    for there in self._links.values():
      there.heard = time.monotonic()

  def seen(self) -> list[tuple[str, dict[str, Any]]]:
    """What the logs of nodes have said since the last call, with the node."""
    return [(n, x) for n, there in self._links.items() for x in there.seen()]

  def garbage(self) -> list[tuple[str, str]]:
    """Nodes and what they printed that is no report; each node once."""
    found = [(n, x.said) for n, x in self._links.items() if x.said]
    found = [(node, said) for node, said in found if node not in self._quoted]
    self._quoted.update(node for node, _ in found)
    return found

  def ranks(self) -> dict[str, list[dict[str, Any]]]:
    """The last status of the ranks of each node."""
    return {n: self._links[n].ranks for n in self._present()}

  def hangs(self) -> list[tuple[str, dict[str, Any]]]:
    """Nodes whose last report is about a rank that hangs."""
    there = ((node, self._links[node].hang) for node in self._present())
    return [(node, hang) for node, hang in there if hang]

  def ask_to_stop(self) -> None:
    """Sends SIGTERM to all ranks."""
    for node in self._present():
      self._links[node].send('signal', number=signal.SIGTERM)

  async def kill(self) -> list[dict[str, Any]]:
    """Ends all ranks, on all nodes at once.

    Returns:
      How far each was, with its node. Nodes that do not answer are lost.
    """
    nodes, self.nodes = self._present(), ()
    asked = {
      node: (self._links[node], self._links[node].kill()) for node in nodes
    }
    if asked:
      await asyncio.wait([x for _, x in asked.values()], timeout=_ANSWER_S)
    progress = []
    for node, (there, answer) in asked.items():
      if not answer.done() or answer.cancelled():
        if self._links.get(node) is there:
          self._lose(node, there.lost or 'it does not say that its ranks ended')
        continue
      report = answer.result()
      progress += [{**r, 'node': node} for r in report['ranks']]
      if report.get('stuck'):  # SIGKILL does not end them: a device hangs.
        self._lose(node, 'its ranks cannot be killed')
      else:
        self._promised.pop(node, None)
    return progress

  async def close(self) -> None:
    """Ends all agents; those that do not end by themselves are killed."""
    there = [*self._links.values(), *self._left]
    for each in self._links.values():
      each.forget()
    until = time.monotonic() + _ANSWER_S
    while any(x.exit_code() is None for x in there):
      if time.monotonic() > until:
        self.safe_at = max([self.safe_at, *self._promised.values()])
        for each in there:
          each.end()
        break
      await asyncio.sleep(_POLL_S)
    self._links, self._left = {}, []

  def _present(self) -> list[str]:
    return [node for node in self.nodes if node in self._links]

  def _acknowledge(self, node: str) -> None:
    """Says to an agent on another machine for how long its ranks may live."""
    there = self._links[node]
    self._acked[node] = there.sent
    if not self._config.agent:  # It ends with this process.
      return
    for_s = min(self._config.lease_s, self._remaining_s())
    there.send('ack', sent=there.sent, for_s=for_s)
    if node in self.nodes:
      self._promised[node] = time.monotonic() + for_s

  def _lose(self, node: str, why: str) -> None:
    there = self._links[node]
    kind: Any = 'agent_lost' if there.version else 'not_started'
    if there.version not in ('', protocol.VERSION):
      kind = 'not_started'
    if (code := there.exit_code()) is not None:
      why = f'{why} with exit code {code}'
    if kind == 'not_started' and there.said:
      why = f'{why}; it printed: {there.said}'
    self.disconnect(node)
    self.losses.append(Loss(node, kind, why, time.monotonic()))
