# SPDX-License-Identifier: Apache-2.0
"""Who is to blame when a generation ends: the cause, not who waited for it."""

import signal

from zaya_jax.aegis.decide import events
from zaya_jax.config import exit_codes
from zaya_jax.runtime import beats

# How ranks end that have lost a peer; 75 is also how they end when asked to.
SYMPTOMS = (-signal.SIGABRT, exit_codes.STOPPED)
_VERDICTS = (exit_codes.USAGE, exit_codes.UNUSABLE, exit_codes.NUMERICS)

_EARLY = beats.PHASES[: beats.PHASES.index('step')]


def ended(event: events.Event) -> events.Progress | None:
  """The rank whose end explains the others; None if the event has none.

  A verdict (usage, data, numerics) wins over a signal, a signal over an
  exception, an exception over an abort, which who lost a peer may end by as
  well, and that over those who say so. Among equals it is the one that ended
  first.
  """
  ranks = [p for p in event.progress if p.exit_code]
  return (
    min(
      ranks, key=lambda p: (_weight(p.exit_code), p.rank != event.rank, p.rank)
    )
    if ranks
    else None
  )


def behind(progress: tuple[events.Progress, ...]) -> tuple[str, ...]:
  """Nodes of the ranks that hold up the others; all of them if none stands out.

  Those that have not entered the step that others entered; else those that are
  stopped or wait for a device; else those in the earliest phase.
  """
  running = [p for p in progress if p.exit_code is None]
  last = max((p.entered for p in running), default=0)
  tests = (
    lambda p: p.entered < last,
    lambda p: p.process in ('T', 't', 'D'),
    *(lambda p, phase=phase: p.phase == phase for phase in _EARLY),
  )
  for test in tests:
    late = [p for p in running if test(p)]
    if 0 < len(late) < len(running):
      return tuple(dict.fromkeys(p.node for p in late))
  return tuple(dict.fromkeys(p.node for p in running))


def _weight(code: int) -> int:
  if code in _VERDICTS:
    return 0
  if code in SYMPTOMS:
    return 3 + (code > 0)
  return 1 if code < 0 else 2
