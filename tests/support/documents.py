# SPDX-License-Identifier: Apache-2.0
"""What the documents say to type."""

import pathlib
import re
import shlex

ROOT = pathlib.Path(__file__).parents[2]
PAGES = sorted(
  [
    ROOT / 'README.md',
    ROOT / 'ops' / 'native' / 'README.md',
    *(ROOT / 'docs').glob('*.md'),
    *(ROOT / 'notebooks').glob('*.md'),
  ]
)
_FENCE = re.compile(r'^```(\w*)\n(.*?)^```$', re.M | re.S)


def blocks(page: pathlib.Path, language: str) -> list[str]:
  """The code of a page in one language."""
  return [
    code for kind, code in _FENCE.findall(page.read_text()) if kind == language
  ]


def commands(page: pathlib.Path) -> list[list[str]]:
  """The words of each command: comments and continued lines are joined."""
  found = []
  for code in blocks(page, 'bash'):
    for line in re.sub(r'\\\n\s*', ' ', code).splitlines():
      if words := shlex.split(line, comments=True):
        found.append(words)
  return found


def programs(page: pathlib.Path) -> list[list[str]]:
  """The arguments of each `python -m zaya_jax.main` of a page's commands."""
  start = ['python', '-m', 'zaya_jax.main']
  found = []
  for words in commands(page):
    for i in range(len(words)):
      if words[i : i + 3] == start:
        rest = words[i + 3 :]
        end = next((j for j, w in enumerate(rest) if w in '><|'), len(rest))
        found.append(rest[:end])
  return found
