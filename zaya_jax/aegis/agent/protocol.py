# SPDX-License-Identifier: Apache-2.0
"""What agents and their supervisor send each other: bounded lines of JSON.

Whatever comes between, as the greeting of an ssh server, is no report.
"""

import json
from typing import Any

from zaya_jax import config as config_lib

# Both ends are of one release: their orders and reports have no other number.
VERSION = config_lib.VERSION
LINE = 65_536  # Bytes of a line that are kept.
_WHY = 100  # Characters that a rank has to say why it failed, in a long line.


class Lines:
  """Splits bytes into lines; cuts those that are longer than LINE.

  Attributes:
    cut: bytes that were left out.
  """

  def __init__(self):
    self._rest = b''
    self.cut = 0

  def feed(self, data: bytes) -> list[bytes]:
    """The lines that end in `data`, without their ends."""
    *lines, rest = data.split(b'\n')
    if lines:
      lines[0], self._rest = self._join(lines[0]), b''
    self._rest = self._join(rest)
    return lines

  def _join(self, part: bytes) -> bytes:
    room = LINE - len(self._rest)
    self.cut += max(0, len(part) - room)
    return self._rest + part[:room]


def encode(message: dict[str, Any]) -> bytes:
  """A line of JSON."""
  return json.dumps(message).encode() + b'\n'


def encode_report(report: dict[str, Any]) -> bytes:
  """The same, short enough: the reasons of ranks are cut if need be."""
  line = encode(report)
  if len(line) > LINE:
    ranks = [{**r, 'why': r['why'][:_WHY]} for r in report['ranks']]
    line = encode({**report, 'ranks': ranks})
  return line


def report(line: bytes) -> dict[str, Any] | None:
  """The report in a line of an agent; None: it is none."""
  try:
    found = json.loads(line)
    if not isinstance(found, dict) or not isinstance(found['ranks'], list):
      return None
    for name, kind in (('kind', str), ('generation', int), ('sent', int)):
      if type(found[name]) is not kind:
        return None
  except (KeyError, ValueError, RecursionError):
    return None
  return found
