# SPDX-License-Identifier: Apache-2.0
"""Scores of a run in process are those that `lm_eval --model hf` gives."""

import json
import os
import pathlib
import subprocess
import sys

import lm_eval
import numpy as np
import pytest
from lm_eval.models import huggingface

from tests.support import runs
from zaya_jax import config as config_lib
from zaya_jax import main
from zaya_jax.inference import harness
from zaya_jax.inference import lm_eval as adapter
from zaya_jax.inference import load as load_lib

ROOT = pathlib.Path(__file__).parents[2]
TASKS = ['zaya_choice', 'zaya_text', 'zaya_write']
FOLDER = 'tests/parity/tasks'
EQUAL = 1e-4  # Relative.
LENGTH = 64  # Tokens that the model admits: some texts are longer.

# Of lm-eval's own libraries.
pytestmark = pytest.mark.filterwarnings('default')

# A process that finds neither package, as after `pip install lm-eval`.
WITHOUT_TORCH = """
import importlib.machinery, sys
finder = importlib.machinery.PathFinder
find, hidden = finder.find_spec, ('torch', 'transformers', 'accelerate')
finder.find_spec = staticmethod(lambda name, *args: (
  None if name.split('.')[0] in hidden else find(name, *args)
))
from zaya_jax import main
code = main.main(sys.argv)
assert not set(hidden) & set(sys.modules)
sys.exit(code)
"""


@pytest.fixture(scope='module', autouse=True)
def offline():
  """The tasks name their data from the root, and nothing is downloaded."""
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(ROOT)
    yield


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
  """(a run, what was exported of it)."""
  folder = tmp_path_factory.mktemp('scores')
  run, out = folder / 'run', folder / 'out'
  shape = runs.save_readable(run)
  data = config_lib.DataConfig(seq_len=LENGTH)
  config = config_lib.Config(run_dir=str(run), model=shape, data=data)
  (run / 'config.flags').write_text(config.to_flagfile())
  export = ['--mode=export', f'--source={run}', f'--output={out}']
  assert main.main(['zaya_jax', *export]) == 0
  return run, out


@pytest.fixture(scope='module')
def theirs(folders):
  # One by one: whether prompts get a bos is decided by the first of a batch.
  return huggingface.HFLM(
    str(folders[1]), device='cpu', dtype='float32', batch_size=1
  )


def their_results(theirs, num_fewshot=None):
  return lm_eval.simple_evaluate(
    theirs,
    tasks=TASKS,
    task_manager=lm_eval.tasks.TaskManager(
      include_path=FOLDER, include_defaults=False
    ),
    num_fewshot=num_fewshot,
    bootstrap_iters=1000,
  )


@pytest.fixture(scope='module')
def wanted(theirs):
  return their_results(theirs)


def our_results(folder, num_fewshot=None, tasks=TASKS):
  return harness.evaluate(
    load_lib.load(str(folder)),
    harness.find_tasks(tasks, FOLDER),
    max_length=LENGTH,
    num_fewshot=num_fewshot,
  )


def assert_same(found, wanted, tasks=TASKS):
  """Metrics and what was answered to every request; the largest error."""
  errors = []
  for task in tasks:
    ours, theirs = found['results'][task], wanted['results'][task]
    assert ours.keys() == theirs.keys()
    errors += [difference(ours[key], value) for key, value in theirs.items()]
    pairs = zip(found['samples'][task], wanted['samples'][task], strict=True)
    for ours, theirs in pairs:
      assert ours['arguments'] == theirs['arguments']
      answers = np.ravel(ours['resps']), np.ravel(theirs['resps'])
      errors += map(difference, *answers)
  assert max(errors) < EQUAL
  return max(errors)


def difference(found, wanted) -> float:
  """Relative, of numbers; what is no number is the same or infinitely far."""
  if found == wanted:
    return 0.0
  try:
    return abs(float(found) - float(wanted)) / abs(float(wanted))
  except ValueError:
    return np.inf


@pytest.mark.parametrize('which', [0, 1], ids=['run', 'exported'])
def test_scores_are_the_same(folders, wanted, which, achieved):
  error = assert_same(our_results(folders[which]), wanted)
  achieved(f'{error:.1e}')


def test_tasks_tell_models_apart(wanted):
  """Some answers are right and some are not, and some texts end early."""
  for task, metric in ('zaya_choice', 'acc'), ('zaya_write', 'exact_match'):
    assert 0 < wanted['results'][task][f'{metric},none'] < 1
  texts = [sample['resps'][0][0] for sample in wanted['samples']['zaya_write']]
  assert len(set(texts)) > 4
  print('TEXTS', texts)
  assert len({len(text) for text in texts}) > 2


def test_scores_without_examples_are_the_same(folders, theirs, wanted):
  """One of the questions is empty then."""
  bare = their_results(theirs, 0)
  with pytest.raises(AssertionError):
    assert_same(bare, wanted)
  assert_same(our_results(folders[0], 0), bare)


def without_bos(patch):
  patch.setattr(
    adapter.ZayaLM,
    'tok_encode',
    lambda self, text, *_, **__: self._model.tokenizer.encode(text).tolist(),
  )


def truncating_on_the_right(patch):
  score = adapter.ZayaLM._loglikelihood_tokens

  def cut(self, requests, *args, **kwargs):
    requests = [
      (text, context[: LENGTH + 1 - len(answer)], answer)
      for text, context, answer in requests
    ]
    return score(self, requests, *args, **kwargs)

  patch.setattr(adapter.ZayaLM, '_loglikelihood_tokens', cut)


def counting_the_context(patch):
  score = adapter.ZayaLM._loglikelihood_tokens

  def whole(self, requests, *args, **kwargs):
    requests = [
      (text, context[:1], (context[1:] + answer)[-LENGTH:])
      for text, context, answer in requests
    ]
    return score(self, requests, *args, **kwargs)

  patch.setattr(adapter.ZayaLM, '_loglikelihood_tokens', whole)


def going_on_after_a_stop(patch):
  how = adapter.ZayaLM._how
  patch.setattr(
    adapter.ZayaLM, '_how', lambda *args: (*how(*args)[:3], ('<eos>',))
  )


@pytest.mark.parametrize(
  'mutant, task',
  [
    (without_bos, 'zaya_text'),
    (without_bos, 'zaya_choice'),
    (without_bos, 'zaya_write'),
    (truncating_on_the_right, 'zaya_choice'),
    (counting_the_context, 'zaya_choice'),
    (going_on_after_a_stop, 'zaya_write'),
  ],
)
def test_mistake_is_noticed(folders, wanted, monkeypatch, mutant, task):
  mutant(monkeypatch)
  found = our_results(folders[0], tasks=[task])
  with pytest.raises(AssertionError):
    assert_same(found, wanted, [task])


def test_command_prints_one_line_for_each_task(folders, wanted):
  """And torch is not even there."""
  done = subprocess.run(
    [
      *(sys.executable, '-c', WITHOUT_TORCH, '--mode=eval'),
      f'--source={folders[0]}',
      f'--eval.tasks={",".join(TASKS)}',
      f'--eval.task_dir={FOLDER}',
    ],
    env={**os.environ, 'JAX_PLATFORMS': 'cpu', 'HF_HUB_OFFLINE': '1'},
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  lines = [json.loads(line) for line in done.stdout.splitlines()]
  assert [line['task'] for line in lines] == TASKS
  for line in lines:
    metrics = wanted['results'][line['task']]
    numbers = {k: v for k, v in line.items() if k != 'task'}
    assert len(numbers) > 1
    for name, value in numbers.items():
      theirs = metrics.get(f'{name},none', metrics.get(name))
      assert difference(value, theirs) < EQUAL
  assert '|zaya_choice|' in done.stderr


@pytest.mark.parametrize(
  'args, sentence',
  [
    (['--eval.tasks=zaya_choise'], 'no such task in tests/parity/tasks or'),
    (['--eval.tasks=zaya_choise'], 'Did you mean zaya_choice?'),
    (['--eval.task_dir=nowhere'], '--eval.task_dir=nowhere does not exist'),
  ],
)
def test_what_is_not_there_is_named(folders, capsys, args, sentence):
  base = [
    '--mode=eval',
    f'--source={folders[0]}',
    '--eval.tasks=zaya_choice',
    f'--eval.task_dir={FOLDER}',
  ]
  assert main.main(['zaya_jax', *base, *args]) == 2
  out, err = capsys.readouterr()
  assert not out
  assert sentence in err


def write_task(folder, **changes):
  task = {
    'task': 'zaya_broken',
    'dataset_path': 'json',
    'dataset_kwargs': {'data_files': {'test': f'{FOLDER}/write.jsonl'}},
    'output_type': 'generate_until',
    'test_split': 'test',
    'doc_to_text': '{{question}}',
    'doc_to_target': '{{answer}}',
    'metric_list': [{'metric': 'exact_match'}],
  }
  (folder / 'task.yaml').write_text(json.dumps(task | changes))


@pytest.mark.parametrize(
  'changes, sentence',
  [
    (
      {'dataset_kwargs': {'data_files': {'test': 'nowhere.jsonl'}}},
      'zaya_broken cannot be loaded',
    ),
    ({'unsafe_code': True}, 'zaya_broken runs code'),
    ({'generation_kwargs': {'num_beams': 2}}, 'generates with num_beams'),
    ({'generation_kwargs': {'max_gen_toks': 64}}, 'the model admits 64 in all'),
  ],
)
def test_task_that_cannot_be_run_is_named(
  folders, tmp_path, capsys, changes, sentence
):
  write_task(tmp_path, **changes)
  args = [
    '--mode=eval',
    f'--source={folders[0]}',
    '--eval.tasks=zaya_broken',
    f'--eval.task_dir={tmp_path}',
  ]
  assert main.main(['zaya_jax', *args]) == 2
  out, err = capsys.readouterr()
  assert not out
  assert sentence in err


def test_samples_are_drawn(folders, tmp_path):
  write_task(
    tmp_path,
    generation_kwargs={
      'do_sample': True, 'temperature': 2.0, 'top_p': 0.9, 'max_gen_toks': 8,
      'until': ['#'],
    },
  )  # fmt: skip

  def texts(seed):
    found = harness.evaluate(
      load_lib.load(str(folders[0])),
      harness.find_tasks(['zaya_broken'], str(tmp_path)),
      max_length=LENGTH,
      seed=seed,
    )
    return [sample['resps'] for sample in found['samples']['zaya_broken']]

  assert texts(0) == texts(0) != texts(1)
