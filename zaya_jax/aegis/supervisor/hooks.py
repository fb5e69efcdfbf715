# SPDX-License-Identifier: Apache-2.0
"""Commands of the site that a supervisor runs, to drain a node for example.

Slurm:      scontrol update NodeName={node} State=DRAIN Reason={reason}
Kubernetes: kubectl cordon {node}
"""

import shlex
import string
import subprocess

from zaya_jax.aegis.decide import orders
from zaya_jax.config import fields

_TIMEOUT_S = 60
_NAMES = {'node', 'reason'}
_SAID = 200  # Characters.


def check(flag: str, command: str) -> None:
  """Raises UsageError if a command has other {fields} than node and reason."""
  try:
    words = shlex.split(command)
    parts = [part for word in words for part in string.Formatter().parse(word)]
  except ValueError as error:
    raise fields.UsageError(f'{flag}={command!r}: {error}.') from error
  names = {name for _, name, *_ in parts if name is not None}
  if unknown := sorted(names - _NAMES):
    raise fields.UsageError(
      f'{flag}={command!r} has {{{unknown[0]}}}; it may have {{node}} and '
      '{reason}.'
    )


def run(command: str, *, node: str, reason: str) -> str:
  """Runs a command without a shell; returns why it failed, '' if it did not.

  A reason may quote a log, so no part of it becomes a word of its own, nor
  means anything to the shell that ssh starts.
  """
  words = orders.words(command, node=node, reason=reason)
  try:
    done = subprocess.run(
      words,
      stdin=subprocess.DEVNULL,
      capture_output=True,
      timeout=_TIMEOUT_S,
      check=False,
    )
  except (OSError, ValueError, subprocess.TimeoutExpired) as error:
    return f'{words[0]}: {error}'
  if done.returncode == 0:
    return ''
  said = done.stderr.decode(errors='replace').strip()[-_SAID:]
  return f'{words[0]} ended with {done.returncode}: {said}'
