# SPDX-License-Identifier: Apache-2.0
"""Questions of the skill tasks: what is right stands in the text."""

import argparse
import json
import random
import textwrap

import pytest

from benchmarks import skill_tasks, skills

_FUNCTION = '''
  def method_{n}(self, first, second):
    """About {n}."""
    total_{n} = first + {n}
    other = total_{n} * second
    names = [first, second]
    if total_{n} > {n}:
      return other
    for name in names:
      total_{n} += name
    return total_{n} - other
'''
CODE = 'class Some:\n' + ''.join(_FUNCTION.format(n=n) for n in range(6))
_PARAGRAPH = (
  'The {0} of a server is read when the server begins, and its {1} are kept.\n'
  'Whoever changes the {0} has to begin the server anew, or the {1} are old.\n'
  'More of this is told where the {0} is told, and where the {1} are listed.\n'
)
PROSE = '\n'.join(
  _PARAGRAPH.format(*pair)
  for pair in 4
  * [('settings', 'modules'), ('commands', 'branches'), ('packets', 'objects')]
)


@pytest.mark.parametrize(
  ('make', 'text'),
  [
    (skill_tasks.functions, CODE),
    (skill_tasks.names, CODE),
    (skill_tasks.words, PROSE),
  ],
  ids=lambda one: getattr(one, '__name__', ''),
)
def test_the_right_answer_follows_in_the_text(make, text):
  found = [q for seed in range(9) for q in make(text, random.Random(seed))]
  assert len(found) > 20
  plain = textwrap.dedent(text.partition('\n')[2]) if text == CODE else text
  for question in found:
    choices, right = question['choices'], question['answer']
    assert len(set(choices)) == skill_tasks.ANSWERS
    follows = [question['before'] + choice in plain for choice in choices]
    assert follows[right]
    # Else chance would find more than a quarter.
    assert sum(follows) == 1
  places = {question['answer'] for question in found}
  assert places == set(range(skill_tasks.ANSWERS))


def test_lines_of_equal_indentation_are_asked_for():
  for question in skill_tasks.functions(CODE, random.Random(0)):
    indents = {len(c) - len(c.lstrip()) for c in question['choices']}
    assert len(indents) == 1


def files():
  for i in range(3):
    yield {'file': f'{i}.py', 'text': CODE}
    yield {'file': f'{i}.rst', 'text': PROSE}
    yield {'file': f'{i}.c', 'text': CODE}


def test_the_same_seed_gives_the_same_questions(tmp_path):
  args = lambda seed: argparse.Namespace(questions=5, seed=seed)
  write = lambda name, seed: skill_tasks.write(
    tmp_path / name, files(), args(seed)
  )
  first = write('first', 0)
  assert first == write('again', 0) != write('other', 1)
  assert {one['questions'] for one in first.values()} == {5}
  manifest = json.loads((tmp_path / 'first/manifest.json').read_text())
  assert manifest == first
  assert len(list((tmp_path / 'first').glob('*.yaml'))) == 3


def test_corpus_that_is_not_there_is_named(tmp_path, monkeypatch, capsys):
  words = ['skill_tasks', f'--corpus={tmp_path}', f'--output={tmp_path}/new']
  monkeypatch.setattr('sys.argv', words)
  with pytest.raises(SystemExit, match='2'):
    skill_tasks.main()
  assert 'holds no held_out.jsonl' in capsys.readouterr().err


def test_a_run_that_was_trained_further_is_scored_again(
  tmp_path, monkeypatch, capsys
):
  (tmp_path / 'manifest.json').write_text('{"questions": 5}')
  steps, scored = [300], []
  monkeypatch.setattr(skills.folders, 'steps', lambda unused: steps)

  def score(run, tasks, more):
    scored.append((run.name, list(more)))
    skill = {'acc': 0.5, 'acc_norm': 0.25, 'acc_stderr': 0.0}
    skill['acc_norm_stderr'] = 0.0
    return {'active': 1e6, 'skills': dict.fromkeys(skill_tasks.TASKS, skill)}

  monkeypatch.setattr(skills, 'score', score)
  monkeypatch.setattr(skills.record, 'circumstances', lambda *unused: {})
  words = ['skills', f'--tasks={tmp_path}', f'--output={tmp_path}/o.jsonl']
  monkeypatch.setattr('sys.argv', [*words, '--runs=runs/a'])
  skills.main()
  skills.main()
  assert scored == [('a', [])]
  steps.append(400)
  skills.main()
  assert len(scored) == 2
  assert '| a, step 400 |' in capsys.readouterr().out
  monkeypatch.setattr('sys.argv', [*words, '--runs=runs/a', '--eval.limit=9'])
  skills.main()
  assert scored[2:] == [('a', ['--eval.limit=9'])]


def test_a_package_that_is_missing_is_named():
  with pytest.raises(SystemExit, match='benchmarks.skills needs no-such-one, '):
    skills.record.circumstances('benchmarks.skills', ['jax', 'no-such-one'])


def test_table_begins_with_the_smallest_run():
  metrics = {'acc': 0.5, 'acc_norm': 0.25}
  metrics |= {f'{name}_stderr': 0.01 for name in metrics}
  rows = [
    {
      'run': f'runs/{n}',
      'step': None,
      'active': n * 1e6,
      'skills': dict.fromkeys(skill_tasks.TASKS, metrics),
    }
    for n in (20, 3)
  ]
  _, _, first, second = skills.table(rows)
  assert first == (
    '| 3 | 3.00M | 0.250 ± 0.010 | 0.500 ± 0.010 | 0.500 ± 0.010 |'
  )
  assert second.startswith('| 20 |')
