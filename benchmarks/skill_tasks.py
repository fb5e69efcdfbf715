# SPDX-License-Identifier: Apache-2.0
"""Tasks on held-out code and prose, for lm-evaluation-harness, offline.

    python -m benchmarks.skill_tasks --corpus=corpus --output=skills

Questions with four answers, of which chance finds a quarter, drawn from the
projects of `benchmarks.corpus` that nobody trains on:

- skill_function: the first half of a real Python function and its next lines,
  beside lines from other functions of the same file.
- skill_name: a function up to a name, and this name with the rest of its line,
  beside other names of the function.
- skill_word: a sentence of documentation up to a word that stood in the file
  before, beside other such words of the file.

Wrong answers come from the same file, so style and subject do not tell them
apart. The same corpus and seed give the same questions.
"""

import argparse
import ast
import collections
import hashlib
import json
import pathlib
import random
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Question = dict[str, Any]

ANSWERS = 4
_CONTEXT = 1500  # Characters before an answer, at most.
_LINES = 4  # Of an answer of `functions`.
_PER_FILE = 4  # Questions, so that no project decides alone.
_WORD = re.compile(r'[A-Za-z]{5,}')
# Three lines or more of prose: no lists, tables or code.
_PARAGRAPH = re.compile(r'(?:^[A-Za-z][^\n]{40,}\n){3,}', re.MULTILINE)


def main() -> None:
  """Writes the tasks, and prints how many questions each has."""
  parser = argparse.ArgumentParser(
    allow_abbrev=False, description=(__doc__ or '').partition('\n')[0]
  )
  parser.add_argument('--corpus', type=pathlib.Path, required=True)
  parser.add_argument('--output', type=pathlib.Path, required=True)
  parser.add_argument('--questions', type=int, default=500, help='of each')
  parser.add_argument('--seed', type=int, default=0)
  args = parser.parse_args()
  if args.output.exists():
    parser.error(f'--output={args.output} exists; name another, or remove it.')
  path = args.corpus / 'held_out.jsonl'
  if not path.exists():
    parser.error(
      f'--corpus={args.corpus} holds no held_out.jsonl; make it: python -m '
      f'benchmarks.corpus --output={args.corpus}'
    )
  lines = path.read_text(encoding='utf-8').splitlines()
  print(json.dumps(write(args.output, map(json.loads, lines), args)))


def write(
  folder: pathlib.Path, files: Iterator[dict[str, str]], args: Any
) -> dict[str, Any]:
  """Writes task files, their questions, and manifest.json, which it returns.

  Args:
    folder: is made.
    files: with 'file' and 'text'.
    args: questions of each task, and the seed.
  """
  found: dict[str, list[Question]] = {name: [] for name in TASKS}
  rng = random.Random(args.seed)
  for one in files:
    for name, (suffixes, questions) in TASKS.items():
      if one['file'].endswith(suffixes):
        asked = list(questions(one['text'], rng))
        rng.shuffle(asked)
        found[name] += asked[:_PER_FILE]
  folder.mkdir(parents=True)
  about: dict[str, Any] = {}
  for name, asked in found.items():
    rng.shuffle(asked)
    asked = asked[: args.questions]
    data = ''.join(json.dumps(question) + '\n' for question in asked)
    (folder / f'{name}.jsonl').write_text(data, encoding='utf-8')
    task = _TASK.format(name=name, path=(folder / f'{name}.jsonl').resolve())
    (folder / f'{name}.yaml').write_text(task, encoding='utf-8')
    sha256 = hashlib.sha256(data.encode()).hexdigest()
    about[name] = {'questions': len(asked), 'sha256': sha256}
  text = json.dumps(about, indent=2) + '\n'
  (folder / 'manifest.json').write_text(text, encoding='utf-8')
  return about


def functions(text: str, rng: random.Random) -> Iterator[Question]:
  """Which lines come next in a Python function?"""
  halves = []
  for node, lines in _functions_of(text):
    # Behind the docstring, if there is one.
    first = node.body[min(1, len(node.body) - 1)].lineno - node.lineno + 1
    middle = max(first, len(lines) // 2)
    middle = next(
      (i for i in range(middle, len(lines)) if lines[i].strip()), len(lines)
    )
    if len(lines) - middle >= _LINES:
      end = lines[middle : middle + _LINES]
      halves.append(('\n'.join(lines[:middle]) + '\n', '\n'.join(end)))
  for before, after in halves:
    indent = len(after) - len(after.lstrip())
    # As deep, so that indentation does not tell.
    others = [
      end
      for _, end in halves
      if end != after and len(end) - len(end.lstrip()) == indent
    ]
    others = list(dict.fromkeys(others))
    if len(others) >= ANSWERS - 1:
      nearest = sorted(others, key=lambda end: abs(len(end) - len(after)))
      wrong = nearest[: ANSWERS - 1]
      yield _question(before, after, wrong, rng)


def names(text: str, rng: random.Random) -> Iterator[Question]:
  """Which name of a Python function stands here?"""
  for node, lines in _functions_of(text):
    loads = [
      part
      for part in ast.walk(node)
      if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
    ]
    own = {arg.arg for arg in ast.walk(node) if isinstance(arg, ast.arg)}
    own |= {
      part.id
      for part in ast.walk(node)
      if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    }
    late = [
      part
      for part in loads
      if part.id in own and part.lineno - node.lineno >= len(lines) // 2
    ]
    if not late or len(own) < ANSWERS:
      continue
    part = rng.choice(late)
    at = part.lineno - node.lineno
    # Columns count bytes, from the left edge of the file.
    if not lines[at].isascii() or part.lineno != part.end_lineno:
      continue
    cut = part.col_offset - node.col_offset
    end = lines[at][cut + len(part.id) :]
    if lines[at][cut : cut + len(part.id)] != part.id:
      continue
    before = '\n'.join([*lines[:at], lines[at][:cut]])
    wrong = rng.sample(sorted(own - {part.id}), ANSWERS - 1)
    yield _question(before, part.id + end, [name + end for name in wrong], rng)


def words(text: str, rng: random.Random) -> Iterator[Question]:
  """Which word of the document stands in this sentence?"""
  for paragraph in _PARAGRAPH.finditer(text):
    seen = collections.Counter(_WORD.findall(text[: paragraph.start()]))
    known = sorted(word for word, count in seen.items() if count >= 2)
    found = [
      match
      for match in _WORD.finditer(paragraph[0])
      if seen[match[0]] >= 2 and match.start() > 80
    ]
    if not found:
      continue
    match = rng.choice(found)
    alike = [
      word
      for word in known
      if word != match[0]
      and word.istitle() == match[0].istitle()
      and word.isupper() == match[0].isupper()
      and word.lower() not in paragraph[0][: match.end()].lower()
    ]
    if len(alike) < ANSWERS - 1:
      continue
    end = re.split(r'[.\n]', paragraph[0][match.end() :], maxsplit=1)[0]
    before = text[: paragraph.start() + match.start()]
    wrong = rng.sample(alike, ANSWERS - 1)
    yield _question(before, match[0] + end, [word + end for word in wrong], rng)


def _functions_of(text: str) -> Iterator[tuple[Any, list[str]]]:
  """Functions of a file, and their lines without the outer indentation."""
  try:
    tree = ast.parse(text)
  except (SyntaxError, ValueError):
    return
  lines = text.splitlines()
  for node in ast.walk(tree):
    if isinstance(node, ast.FunctionDef) and node.end_lineno:
      own = lines[node.lineno - 1 : node.end_lineno]
      if 8 <= len(own) <= 60:
        yield node, textwrap.dedent('\n'.join(own)).splitlines()


def _question(
  before: str, right: str, wrong: Sequence[str], rng: random.Random
) -> Question:
  choices = [right, *wrong]
  rng.shuffle(choices)
  return {
    'before': before[-_CONTEXT:],
    'choices': choices,
    'answer': choices.index(right),
  }


TASKS: dict[
  str,
  tuple[str | tuple[str, ...], Callable[[str, random.Random], Any]],
] = {
  'skill_function': ('.py', functions),
  'skill_name': ('.py', names),
  'skill_word': (('.rst', '.txt'), words),
}
_TASK = """\
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {path}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{before}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
target_delimiter: ""
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
  - metric: acc_norm
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1
"""


if __name__ == '__main__':
  main()
