# SPDX-License-Identifier: Apache-2.0
"""Which rank is the cause of an end or a hang, as opposed to its victims."""

import signal

from zaya_jax.aegis.decide import events
from zaya_jax.config import exit_codes
from zaya_jax.runtime import beats

# How a rank ends that has lost a peer; 75 is also how it ends when asked to.
SYMPTOMS = (-signal.SIGABRT, exit_codes.STOPPED)
_VERDICTS = (exit_codes.USAGE, exit_codes.UNUSABLE, exit_codes.NUMERICS)
_EARLY = beats.PHASES[: beats.PHASES.index('step')]


def ended(event: events.Event) -> events.Progress | None:
  """The rank whose end explains the others; None if no rank has failed.

  The order is: a verdict (usage, data, numerics), a signal, an exception, an
  abort (which may also be the loss of a peer), exit code 75. Among equals it
  is the rank that ended first.
  """
  return min(
    (p for p in event.progress if p.exit_code),
    key=lambda p: (_weight(p.exit_code or 0), p.rank != event.rank, p.rank),
    default=None,
  )


def behind(progress: tuple[events.Progress, ...]) -> tuple[str, ...]:
  """Nodes of the ranks that block the others; all of them if none stands out.

  These are the ranks that a signal has stopped: no other rank can cause that.
  Else those that have not entered the step that others have entered; else those
  that wait for a device; else those in the earliest phase.
  """
  running = [p for p in progress if p.exit_code is None]
  last = max((p.entered for p in running), default=0)
  tests = (
    lambda p: p.process in ('T', 't'),
    lambda p: p.entered < last,
    lambda p: p.process == 'D',
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
