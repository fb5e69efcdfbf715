# SPDX-License-Identifier: Apache-2.0
"""Commands of the site that a supervisor runs, to drain a node for example.

Slurm:      scontrol update NodeName={node} State=DRAIN Reason={reason}
Kubernetes: kubectl cordon {node}
"""

import contextlib
import os
import select
import shlex
import signal
import string
import subprocess
import time

from zaya_jax.aegis.decide import orders
from zaya_jax.config import fields

TIMEOUT_S = 60.0
_NAMES = {'node', 'reason'}
_SAID = 200  # Characters.
_KEPT = 4096  # Bytes of what a command prints.


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
    process = subprocess.Popen(
      words,
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      start_new_session=True,
    )
  except (OSError, ValueError) as error:
    return f'{words[0]}: {error}'
  with process:
    code, said = _listen(process)
    with contextlib.suppress(ProcessLookupError):
      os.killpg(process.pid, signal.SIGKILL)  # It, or what it has left.
  text = said.decode(errors='replace').strip()[-_SAID:]
  if code == 0:
    return ''
  if code is None:
    return f'{words[0]}: timed out after {TIMEOUT_S:g} seconds: {text}'
  return f'{words[0]} ended with {code}: {text}'


def _listen(process: subprocess.Popen[bytes]) -> tuple[int | None, bytes]:
  """The exit code, None if there is none in time, and the end of its output.

  Whatever else holds the pipe open is not waited for.
  """
  pipe, until, said = process.stdout.fileno(), time.monotonic() + TIMEOUT_S, b''
  os.set_blocking(pipe, False)
  ended = os.pidfd_open(process.pid)
  poll = select.poll()
  poll.register(ended, select.POLLIN)
  poll.register(pipe, select.POLLIN)
  try:
    while (left := until - time.monotonic()) > 0:
      ready = dict(poll.poll(1000 * left))
      if pipe in ready:
        if data := _read(pipe):
          said = (said + data)[-_KEPT:]
          continue
        poll.unregister(pipe)
      if ended in ready:
        options = os.WEXITED | os.WNOWAIT
        found = os.waitid(os.P_PID, process.pid, options)
        sign = 1 if found.si_code == os.CLD_EXITED else -1
        return sign * found.si_status, said
    return None, said
  finally:
    os.close(ended)


def _read(pipe: int) -> bytes:
  try:
    return os.read(pipe, 2**16)
  except BlockingIOError:
    return b''
