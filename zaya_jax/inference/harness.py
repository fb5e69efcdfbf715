# SPDX-License-Identifier: Apache-2.0
"""Runs tasks of lm-evaluation-harness in this process.

To import this module needs the package lm-eval.
"""

import contextlib
import difflib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import datasets
import lm_eval
import yaml
from lm_eval import tasks as task_lib
from lm_eval import utils

from pipelines.chat import sandbox
from zaya_jax import config as config_lib
from zaya_jax.inference import lm_eval as adapter
from zaya_jax.inference import model as model_lib

# Of what a task file says, of code that it names, and of its data, which may
# have to be downloaded.
_UNLOADABLE = (
  ArithmeticError,
  AssertionError,
  AttributeError,
  ImportError,
  LookupError,
  OSError,
  RuntimeError,
  TypeError,
  ValueError,
  datasets.exceptions.DatasetsError,
  sandbox.Error,
  yaml.YAMLError,
)


def find_tasks(names: Sequence[str], folder: str) -> task_lib.TaskManager:
  """Loads tasks, with their data.

  Args:
    names: of tasks, tags and groups; `*` and `?` stand for other letters.
    folder: with task files; empty: there are only those of the harness, which
      are not looked at if the folder has all.

  Returns:
    What `evaluate` takes.

  Raises:
    UsageError: if there is no such task or folder, a task has no data, or it
      asks for what is not supported.
  """
  if folder and not os.path.isdir(folder):
    raise config_lib.UsageError(
      f'--eval.task_dir={folder} is not a folder; name the one with your task '
      'files (.yaml).'
    )
  manager = task_lib.TaskManager(
    include_path=folder or None, include_defaults=not folder
  )
  found = {name: manager.match_tasks([name]) for name in names}
  if folder and not all(found.values()):
    manager = task_lib.TaskManager(include_path=folder)
    found = {name: manager.match_tasks([name]) for name in names}
  for name in (name for name in names if not found[name]):
    near = difflib.get_close_matches(name, manager.all_tasks, 1)
    hint = f' Did you mean {near[0]}?' if near else ''
    where = f' in {folder} or' if folder else ''
    raise config_lib.UsageError(
      f'--eval.tasks={name}: there is no such task{where} in '
      f'lm-evaluation-harness.{hint}'
    )
  names = list(dict.fromkeys(sum(found.values(), [])))
  try:
    with _to_stderr():
      loaded = manager.load(names)
  except _UNLOADABLE as error:
    raise config_lib.UsageError(
      f'--eval.tasks={",".join(names)} cannot be loaded '
      f'({type(error).__name__}: {" ".join(str(error).split())}); look at the '
      'task file, and whether its data is there or can be downloaded.'
    ) from error
  for name, task in loaded['tasks'].items():
    if getattr(task, 'UNSAFE_CODE', False) or getattr(
      task, 'MULTIMODAL', False
    ):
      raise config_lib.UsageError(
        f'--eval.tasks={name} runs code that the model writes, or shows it '
        'images; leave it out, neither is supported.'
      )
  manager.load = lambda _: loaded  # The harness would do it once more.
  return manager


def evaluate(
  model: model_lib.Model,
  manager: task_lib.TaskManager,
  *,
  max_length: int,
  num_fewshot: int | None = None,
  limit: int | None = None,
  seed: int = 0,
) -> dict[str, Any]:
  """Scores a model by the tasks of `find_tasks`.

  Returns:
    What `lm_eval.simple_evaluate` does.
  """
  # It would fork, and JAX has threads.
  os.environ.setdefault('DISABLE_MULTIPROC', '1')
  with _to_stderr():
    return lm_eval.simple_evaluate(
      adapter.ZayaLM(model, max_length, seed),
      tasks=['found'],
      task_manager=manager,
      num_fewshot=num_fewshot,
      limit=limit,
      bootstrap_iters=1000,
    )


def table(results: dict[str, Any]) -> str:
  """The harness' own table of its results."""
  return utils.make_table(results)


@contextlib.contextmanager
def _to_stderr() -> Iterator[None]:
  """What the harness prints is not a result."""
  with contextlib.redirect_stdout(sys.stderr):
    yield
