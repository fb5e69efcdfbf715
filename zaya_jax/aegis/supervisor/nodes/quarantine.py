# SPDX-License-Identifier: Apache-2.0
"""Nodes that some run of this site has condemned, in the lease store.

{node: {reason, since_s, until_s, run}}: a run that starts uses none of them.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from zaya_jax.aegis.decide import state as state_lib
from zaya_jax.runtime import lease

_KEY = 'quarantine'


def add(store: lease.Store, nodes: Iterable[state_lib.Held], run: str) -> None:
  """Tells all runs of nodes in quarantine. Raises LeaseError.

  Args:
    store: that they share.
    nodes: to add.
    run: that has condemned them, for people.
  """
  new = {
    held.node: {
      'reason': held.reason,
      'since_s': held.since_s,
      'until_s': held.until_s,
      'run': run,
    }
    for held in nodes
  }
  store.update_site(_KEY, lambda old: {**(old or {}), **new})


def tell(
  store: lease.Store,
  nodes: Sequence[state_lib.Held],
  run: str,
  say: Callable[[str], None],
) -> None:
  """As `add`, without waiting: the store may be slow; `say` if it fails."""

  def call() -> None:
    try:
      add(store, nodes, run)
    except lease.LeaseError as error:
      names = ', '.join(held.node for held in nodes)
      say(f'other runs are not told of {names}: {error}')

  threading.Thread(target=call, daemon=True).start()


def read(
  store: lease.Store, nodes: Sequence[str]
) -> tuple[state_lib.Held, ...]:
  """Those of `nodes` that are in quarantine. Raises LeaseError."""
  known: dict[str, Any] = store.read_site(_KEY) or {}
  return tuple(
    state_lib.Held(
      node=node,
      reason=str(facts.get('reason', '')),
      since_s=float(facts['since_s']),
      until_s=float(facts['until_s']),
    )
    for node, facts in known.items()
    if node in nodes
  )
