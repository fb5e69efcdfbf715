# SPDX-License-Identifier: Apache-2.0
"""What tools of a node print: stored, compared, damaged."""

import json
import os
import random
import subprocess

from tests.support import documents

_FOLDER = documents.ROOT / 'tests' / 'golden' / 'telemetry'
_ODD = (None, 'N/A', -1, 2**70, [], {}, [[]], {'value': {}}, True, 1e400)


def text(name: str) -> str:
  """A stored answer."""
  return (_FOLDER / name).read_text()


def rises(read, name: str, form: str) -> dict[str, float]:
  """What has risen from the answer without faults to the one with some."""
  before = read(text(f'{name}_clear.{form}'))
  after = read(text(f'{name}_faults.{form}'))
  return {
    key: value - before.get(key, 0.0)
    for key, value in after.items()
    if value > before.get(key, 0.0)
  }


def damaged(answer: str) -> list[str]:
  """The answer cut, with other bytes, and with odd values at each place."""
  chance = random.Random(0)
  found = ['', '\0', 'null', '[null]', '[{}]', '[' * 10_000]
  for _ in range(100):
    found.append(answer[: chance.randrange(len(answer))])
    at = chance.randrange(len(answer))
    found.append(f'{answer[:at]}{chr(chance.randrange(256))}{answer[at + 1 :]}')
  if answer.lstrip()[0] in '[{':
    found += [json.dumps(x) for x in _odd(json.loads(answer))]
  return found


def _odd(value):
  """The value, with each of its parts replaced by each odd one."""
  yield from _ODD
  parts = ()
  if isinstance(value, dict):
    parts = value.items()
  elif isinstance(value, list):
    parts = enumerate(value)
  for key, part in parts:
    for other in _odd(part):
      copy = value.copy()
      copy[key] = other
      yield copy


def shell(script: str, **more: str) -> str:
  """What a script prints."""
  return subprocess.run(
    ['sh', '-c', script],
    env={**os.environ, **more},
    capture_output=True,
    text=True,
    check=False,
    timeout=60,
  ).stdout
