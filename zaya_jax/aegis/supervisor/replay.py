# SPDX-License-Identifier: Apache-2.0
"""Makes the decisions of incidents.jsonl again; says where they differ."""

import pathlib
import sys

from zaya_jax.aegis.decide import decide as decide_lib
from zaya_jax.aegis.supervisor import incidents
from zaya_jax.config import fields


def replay(path: pathlib.Path) -> list[str]:
  """One sentence for each line whose action would differ now.

  Raises:
    UsageError: if it cannot be read, has no state or is of another version.
  """
  if not path.is_file():
    raise fields.UsageError(f'--aegis.replay={path} is no file.')
  state, differ = None, []
  for number, entry in incidents.read(path):
    if isinstance(entry, incidents.State):
      state = entry
      continue
    if state is None:
      raise fields.UsageError(
        f'{path} does not begin with the state of a supervisor.'
      )
    event, was = entry
    state, now = decide_lib.decide(state, event)
    if now != was:
      differ.append(f'line {number}, {event.kind}: was {was}, now {now}')
  if state is None:
    raise fields.UsageError(f'{path} has no line of a supervisor.')
  return differ


def run(path: str) -> int:
  """What --mode=supervise --aegis.replay=FILE does: 0, or 1 if any differ."""
  differ = replay(pathlib.Path(path))
  for sentence in differ:
    print(sentence)
  print(
    f'{len(differ)} decisions of {path} differ.'
    if differ
    else f'the decisions of {path} are the same.',
    file=sys.stderr,
  )
  return int(bool(differ))
