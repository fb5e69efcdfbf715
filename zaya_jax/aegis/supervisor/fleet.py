# SPDX-License-Identifier: Apache-2.0
"""The agents of a run: one for each node, spares among them."""

import contextlib
import dataclasses
import os
import selectors
import signal
from collections.abc import Iterator, Sequence
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.aegis.supervisor import link
from zaya_jax.runtime import supervised


class Fleet:
  """Starts agents and ranks, and ends them.

  Args:
    config: of the run.
    command: that starts a rank.
    selector: gets the file of each agent, with its node as data.
  """

  def __init__(
    self,
    config: config_lib.Config,
    command: list[str],
    selector: selectors.BaseSelector,
  ):
    self._config, self._command = config.aegis, command
    self._selector = selector
    self._links: dict[str, link.Link] = {}
    self.nodes: tuple[str, ...] = ()  # Of this generation.
    self.gone: list[str] = []  # Nodes of lost agents; the caller clears it.

  def connect(self, node: str, *, spare: bool) -> None:
    """Starts the agent of a node, unless it runs."""
    if node in self._links:
      return
    there = self._links[node] = link.Link(node, self._config.agent)
    self._selector.register(there.file, selectors.EVENT_READ, node)
    with self._losing(node):
      there.send(
        'setup',
        command=self._command,
        directory=os.getcwd(),
        node=node,
        spare=spare,
        aegis=dataclasses.asdict(self._config),
      )

  def begin(self, nodes: Sequence[str], place: supervised.Place) -> None:
    """Starts the ranks of a generation, in the order of its nodes.

    Args:
      nodes: their names.
      place: of every rank, but for its number.
    """
    self.nodes, each = tuple(nodes), self._config.ranks_per_node
    for index, node in enumerate(nodes):
      self.connect(node, spare=False)
      places = []
      for i in range(index * each, (index + 1) * each):
        environment = place.environment | {'JAX_PROCESS_ID': str(i)}
        mine = dataclasses.replace(place, rank=i, environment=environment)
        places.append(dataclasses.asdict(mine))
      with self._losing(node):
        self._links[node].generation = place.generation
        self._links[node].send('start', places=places)

  def reports(self, nodes: Sequence[str]) -> Iterator[tuple[str, dict]]:
    """Yields (node, report) of what has come; loses agents that are silent."""
    for node in nodes:
      with self._losing(node):
        for report in list(self._links[node].receive()):
          yield node, report
    for node in list(self._links):
      if self._links[node].is_silent:
        self._lose(node)

  def ranks(self) -> dict[str, list[dict[str, Any]]]:
    """The last status of the ranks of each node."""
    return {n: self._links[n].ranks for n in self._present()}

  def ask_to_stop(self) -> None:
    """Sends SIGTERM to all ranks."""
    for node in self._present():
      with self._losing(node):
        self._links[node].send('signal', number=signal.SIGTERM)

  def kill(self) -> list[dict[str, Any]]:
    """Ends all ranks; returns how far each was, with its node."""
    progress, nodes = [], self._present()
    self.nodes = ()
    for node in nodes:
      with self._losing(node):
        self._links[node].send('kill')
    for node in nodes:
      with self._losing(node):
        if node not in self._links:
          continue
        report = self._links[node].await_report('killed')
        self._links[node].ranks = []
        progress += [{**r, 'node': node} for r in report['ranks']]
        if report['stuck']:  # SIGKILL does not end them: a device hangs.
          raise link.LostError(node)
    return progress

  def close(self) -> None:
    """Ends all agents."""
    for there in self._links.values():
      there.close()

  def _present(self) -> list[str]:
    return [node for node in self.nodes if node in self._links]

  def _lose(self, node: str) -> None:
    there = self._links.pop(node)
    self._selector.unregister(there.file)
    there.close(kill=True)
    self.gone.append(node)

  @contextlib.contextmanager
  def _losing(self, node: str) -> Iterator[None]:
    """Inside, a node is lost if its agent does not answer."""
    try:
      yield
    except link.LostError:
      self._lose(node)
