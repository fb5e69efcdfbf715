# SPDX-License-Identifier: Apache-2.0
"""An agent without ranks: it notes its orders and answers as a file says.

    python -m tests.support.fake_agent FOLDER NODE [...]

writes orders to FOLDER/NODE.orders, a line each. FOLDER/NODE.json has the
reports that answer an order, by its kind; without one there is no answer.
"""

import json
import pathlib
import sys


def main() -> None:
  """Answers orders until the input is closed."""
  path = pathlib.Path(*sys.argv[1:3])
  answers = {}
  if (told := path.with_suffix('.json')).exists():
    answers = json.loads(told.read_text())
  for line in sys.stdin:
    with path.with_suffix('.orders').open('a') as file:
      file.write(line)
    for report in answers.get(json.loads(line)['do'], ()):
      print(json.dumps(report), flush=True)


if __name__ == '__main__':
  main()
