# SPDX-License-Identifier: Apache-2.0
"""--mode=preflight in several processes: each node, and the links between.

What is slow is measured again, all beside all, PASSES times or for LONG_S: the
best share counts. So a node that others use for a moment is not blamed.
"""

import dataclasses
import json
import platform
import sys
import time
from collections.abc import Iterator
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.bench.sweep import limit
from zaya_jax.config import exit_codes
from zaya_jax.preflight import examine, judge, table
from zaya_jax.preflight.links import blame, measure, schedule
from zaya_jax.runtime import processes, session

PASSES, LONG_S = 8, 90.0
_LIMIT_S = 60.0  # The first collective sets up connections.
_FIRST_S = 3.0  # In which process 0 says what hangs, before others end it.
_LINK, _NODE = 'Look at cable, port and switch.', 'Take the node out.'
_WANTED = f'at least {blame.LIMIT:g} of the others'
Check = judge.Check


class HungError(RuntimeError):
  """A node or a link that hangs; one sentence."""

  exit_code = exit_codes.UNUSABLE


def main(config: config_lib.Config) -> int:
  """Checks the nodes of all processes, and the links between them.

  Returns:
    The exit code, in every process: 0 if all is fit, 3 if not.
  """
  start = time.monotonic()
  place = config_lib.DistributedConfig()
  text = dataclasses.replace(config, distributed=place).to_flagfile()
  wait_s = config.distributed.collective_timeout_s / 2  # XLA's comes later.
  with session.join(config, text) as config:
    names = processes.all_say(platform.node())
    first = names.index(platform.node()) == processes.process()
    mine = examine.this_node(config)[1] if first else []
    checks = [
      dataclasses.replace(Check(**one), name=f'{name}: {one["name"]}')
      for name, said in zip(
        names,
        processes.all_say([dataclasses.asdict(c) for c in mine]),
        strict=True,
      )
      for one in said
    ]
    across = _Across(config, names, min(_LIMIT_S, wait_s), start)
    checks += across.run(checks)
    return _conclude(config, checks, across.found, start)


class _Across:
  """Measures links and processes, and judges them.

  Args:
    config: of the command.
    names: of the nodes of the processes.
    limit_s: seconds of a measurement.
    start: of the command, by the monotonic clock.

  Attributes:
    found: all shares, for --output.
  """

  def __init__(self, config, names: list[str], limit_s: float, start: float):
    self._config, self._names, self._start = config, names, start
    self._checks: list[Check] = []
    self.found: dict[str, Any] = {}
    self._meter = measure.Meter(names, limit.Limit(limit_s, self._hung))

  def run(self, known: list[Check]) -> list[Check]:
    """All checks; `known` are told as well if something hangs."""
    self._checks = list(known)
    self._meter.start()
    pairs = schedule.links(len(self._names))
    self._nodes()
    kinds = {
      'link within a node': [p for p in pairs if self._is_within(p)],
      'link between nodes': [p for p in pairs if not self._is_within(p)],
    }
    for kind, mine in kinds.items():
      if mine:
        self._links(kind, mine)
    return self._checks[len(known) :]

  def _nodes(self) -> None:
    best: dict[str, dict[int, float]] = {}
    faults: dict[int, str] = {}
    for _ in self._passes():
      for noun, found in self._meter.nodes().items():
        faults |= {p: one.fault for p, one in found.items() if one.fault}
        shares = blame.shares_of_nodes({p: f.rate for p, f in found.items()})
        _keep(best.setdefault(noun, {}), shares)
      if all(x >= blame.LIMIT for s in best.values() for x in s.values()):
        break
    for process, why in faults.items():
      self._fault(f'values of {self._meter.name(process)}', why, _NODE)
    for noun, shares in best.items():
      self.found[noun] = {str(p): round(x, 3) for p, x in shares.items()}
      slow = {p: x for p, x in shares.items() if x < blame.LIMIT}
      for process, share in slow.items():
        what = f'{noun} of {self._meter.name(process)}'
        self._fault(what, f'{share:.2f} of the others', _NODE)
      if not slow:
        self._fit(noun, shares.values())

  def _links(self, kind: str, pairs: list[measure.Link]) -> None:
    best: dict[measure.Link, float] = {}
    for _ in self._passes():
      found = self._meter.links(pairs)
      wrong = {pair: one.fault for pair, one in found.items() if one.fault}
      _keep(best, blame.shares({p: one.rate for p, one in found.items()}))
      if wrong or all(share >= blame.LIMIT for share in best.values()):
        break
    self.found[kind] = [
      {'processes': list(pair), 'share': round(share, 3)}
      for pair, share in best.items()
    ]
    for pair, why in wrong.items():
      self._fault(f'values over {kind} of {self._meter.name(pair)}', why, _LINK)
    slow = {p for p, x in best.items() if x < blame.LIMIT} - {*wrong}
    nodes, links = blame.slow(slow, pairs)
    for process, mine in nodes.items():
      most = max(best[pair] for pair in mine)
      what = f'{len(mine)} links, {most:.2f} of the others at best'
      name = f'every {kind} of {self._meter.name(process)}'
      self._fault(name, what, 'Look at its network cards, or take it out.')
    for pair in links:
      name = f'{kind} of {self._meter.name(pair)}'
      self._fault(name, f'{best[pair]:.2f} of the others', _LINK)
    if len(pairs) == 1 and not wrong:
      why = 'there is no other link to compare it with; its values are right'
      self._checks.append(
        Check(name=kind, outcome='not checked', found=why, wanted=_WANTED)
      )
    elif not slow and not wrong:
      self._fit(kind, best.values())

  def _passes(self) -> Iterator[int]:
    """As many as there is time for, by the clock of process 0."""
    until = time.monotonic() + LONG_S
    for number in range(PASSES):
      if processes.first_says(lambda: time.monotonic() < until):
        yield number

  def _is_within(self, pair: measure.Link) -> bool:
    return self._names[pair[0]] == self._names[pair[1]]

  def _fit(self, name, shares) -> None:
    found = f'{min(shares):.2f} of the others or more'
    self._checks.append(
      Check(name=name, outcome='fit', found=found, wanted=_WANTED)
    )

  def _fault(self, name, found, advice) -> None:
    self._checks.append(
      Check(
        name=name, outcome='fault', found=found, wanted=_WANTED, advice=advice
      )
    )

  def _hung(self, error: limit.HungError) -> None:
    """Ends all processes, and names who hangs; in a thread of its own."""
    meter, waiting = self._meter, self._meter.unfinished()
    pairs = [pair for pair in meter.doing if set(pair) & {*waiting}]
    if error.missing:
      who = ', '.join(meter.name(process) for process in error.missing)
      why = f'{who} does not answer'
    elif pairs:
      why = f'the link of {"; ".join(meter.name(p) for p in pairs)} hangs'
    else:
      why = f'{", ".join(meter.name(p) for p in waiting)} hangs'
    self._fault('hung', why, _NODE)
    if processes.process():
      time.sleep(_FIRST_S)
    else:
      _conclude(self._config, self._checks, self.found, self._start)
      sys.stdout.flush()
    session.fail(HungError(f'{why}: {error}'))


def _keep(best: dict, shares: dict) -> None:
  """The best that each has had."""
  for key, share in shares.items():
    best[key] = max(best.get(key, 0.0), share)


def _conclude(config, checks, found, start) -> int:
  """The verdict of process 0, which alone has terminal and --output."""
  if processes.process():
    is_fit = all(check.outcome != 'fault' for check in checks)
    return exit_codes.DONE if is_fit else exit_codes.UNUSABLE
  name = f'{processes.processes()} processes from {platform.node()}'
  text = json.loads(json.dumps(found))
  return table.conclude(config.output, name, checks, start, shares=text)
