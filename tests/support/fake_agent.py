# SPDX-License-Identifier: Apache-2.0
"""An agent without ranks: it notes its orders and answers as a file says.

    python -m tests.support.fake_agent FOLDER NODE [...]

writes orders to FOLDER/NODE.orders, a line each. FOLDER/NODE.json has what
answers an order, by its kind: reports, or text that is printed as it is. What
answers 'nothing' comes first; by itself, that is hello.
"""

import itertools
import json
import pathlib
import sys

from zaya_jax.aegis.agent import protocol

HELLO = {
  'kind': 'hello',
  'version': protocol.VERSION,
  'generation': 0,
  'ranks': [],
}


def main() -> None:
  """Answers orders until the input is closed."""
  path = pathlib.Path(*sys.argv[1:3])
  answers = {'nothing': [HELLO]}
  if (told := path.with_suffix('.json')).exists():
    answers |= json.loads(told.read_text())
  numbers = itertools.count()
  for line in itertools.chain(['{"do": "nothing"}'], sys.stdin):
    if 'nothing' not in line:
      with path.with_suffix('.orders').open('a') as file:
        file.write(line)
    for answer in answers.get(json.loads(line)['do'], ()):
      if isinstance(answer, dict):
        answer = json.dumps({'sent': next(numbers), **answer}) + '\n'
      sys.stdout.write(answer)
      sys.stdout.flush()


if __name__ == '__main__':
  main()
