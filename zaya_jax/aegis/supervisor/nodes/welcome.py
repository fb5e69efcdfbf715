# SPDX-License-Identifier: Apache-2.0
"""Nodes that may join or come back: they are connected to, and examined."""

import asyncio
import time
from collections.abc import Callable, Iterable

from zaya_jax.aegis.supervisor.nodes import background, fleet


class Welcome:
  """Examines all nodes that are to join at the same time.

  Args:
    there: the agents.
    examine: returns why a node must not join; it may block.
    limit_s: for an examination.
  """

  def __init__(
    self, there: fleet.Fleet, examine: Callable[[str], str], limit_s: float
  ):
    self._fleet, self._examine, self._limit_s = there, examine, limit_s
    self._exams: dict[str, asyncio.Task[str]] = {}
    self._due: dict[str, float] = {}  # When to try again,
    self._wait: dict[str, float] = {}  # and how long to wait after that.

  def verdict(self, node: str) -> str | None:
    """Why a node must not join, '' if it may; None: that is not known yet."""
    if node not in self._exams:
      self._exams[node] = asyncio.create_task(self._look_at(node))
    exam = self._exams[node]
    return exam.result() if exam.done() else None

  def forget(self, node: str) -> None:
    """Examines a node again before it joins the next time."""
    self._exams.pop(node, None)

  def back(
    self, nodes: Iterable[str], *, first_s: float, longest_s: float
  ) -> list[str]:
    """Tries nodes that are away, now and then.

    Args:
      nodes: their names.
      first_s: seconds before the first time; then it is twice as long.
      longest_s: seconds between two times.

    Returns:
      Those that have said hello and may join.
    """
    now, found = time.monotonic(), []
    for node in nodes:
      due = self._due.setdefault(node, now + first_s)
      if node not in self._fleet.connected:
        if now >= due:
          wait = self._wait.get(node, max(1.0, first_s))
          self._due[node] = now + wait
          self._wait[node] = min(longest_s, 2 * wait)
          self.forget(node)
          self._fleet.connect(node, spare=True)
      elif self._fleet.is_ready(node):
        verdict = self.verdict(node)
        if verdict:
          self._fleet.disconnect(node)
        elif verdict == '':
          found.append(node)
          self.forget(node)
          self._due.pop(node)
          self._wait.pop(node, None)
    return found

  async def _look_at(self, node: str) -> str:
    try:
      return await background.run(self._examine, node, limit_s=self._limit_s)
    except TimeoutError:
      return f'--aegis.health does not end within {self._limit_s:g} s'
