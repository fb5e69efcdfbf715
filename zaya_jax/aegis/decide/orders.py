# SPDX-License-Identifier: Apache-2.0
"""The words of a command of the site, as --aegis.drain and --aegis.health."""

import re
import shlex

# A reason may quote a log, and ssh gives words to a shell: nothing in it may
# mean anything to one, or begin a word of its own.
_UNSAFE = re.compile(r'[^A-Za-z0-9_.,:/+-]+')
_REASON = 200  # Characters.


def words(command: str, *, node: str, reason: str) -> list[str]:
  """The words of a command about a node; `{reason}` is safe in any shell."""
  safe = _UNSAFE.sub('_', reason).lstrip('-')[:_REASON]
  return [word.format(node=node, reason=safe) for word in shlex.split(command)]


def line(command: str, *, node: str, reason: str) -> str:
  """The same as one line, which a shell takes apart again."""
  return shlex.join(words(command, node=node, reason=reason))
