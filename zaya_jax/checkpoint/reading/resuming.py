# SPDX-License-Identifier: Apache-2.0
"""The checkpoint from which a run goes on: its own, and not an older one."""

import os
from typing import Any

from zaya_jax.checkpoint import errors, folders, seal
from zaya_jax.checkpoint.reading import finder, high_water
from zaya_jax.runtime import fence, processes, run_files

_THEN = (
  'Put back what was there, or go on from what is there now after '
  '--mode=checkpoints --checkpoint.action=accept --source='
)


def newest(run_dir: str, *, repair: bool = False) -> int | None:
  """The step of the newest valid checkpoint of a run that is of this run.

  Args:
    run_dir: the run directory.
    repair: as of `finder.newest`.

  Raises:
    CheckpointError: as `finder.newest`.
  """
  run, began = processes.first_says(
    lambda: [run_files.run_id(run_dir), fence.began(run_dir)]
  )

  def also(directory, body):
    if body.get('run') not in (None, run):
      what = f'run {body["run"]} has saved it, and run_id says {run}'
      raise seal.BrokenError(directory, 'run', what)
    if what := outlived(body, began):
      raise seal.BrokenError(directory, 'zombie', what)

  return finder.newest(folders.root(run_dir), repair=repair, also=also)


def outlived(body: dict[str, Any], began: list[Any]) -> str:
  """Whether a generation sealed this after it was given up: how, or ''.

  Args:
    body: of the seal.
    began: of `fence.began`.
  """
  own, step = body.get('generation'), body['step']
  for generation, start in began:
    older = own is not None and own < generation
    if older and start is not None and step > start:
      return (
        f'generation {own} has saved it, and generation {generation} had begun '
        f'at step {start}'
      )
  return ''


def check(run_dir: str, step: int | None) -> None:
  """Refuses to go on before the newest checkpoint that was sealed.

  Args:
    run_dir: the run directory.
    step: from which the run would go on; None: from the beginning.

  Raises:
    CheckpointError: the same in all processes.
  """
  if why := processes.first_says(lambda: _refusal(run_dir, step)):
    raise errors.CheckpointError(why)


def _refusal(run_dir, step) -> str:
  mark, root = high_water.read(run_dir), folders.root(run_dir)
  if mark is None:
    return ''
  if mark.run != (run := run_files.run_id(run_dir)):
    # A new run may take the place of one that was deleted.
    return (
      ''
      if step is None
      else (
        f'{run_dir} was the directory of run {mark.run}, and its run_id says '
        f'{run} now. {_THEN}{run_dir}.'
      )
    )
  if step is not None and step > mark.step:
    return ''
  found = 'no checkpoint' if step is None else f'step {step}'
  if step == mark.step:
    there = os.path.join(root, str(step))
    if not os.path.isdir(there):  # A fast copy of it is used.
      return ''
    if seal.identity(seal.verified(there)) == mark.seal:
      return ''
    found += ', with other content,'
  return (
    f'{root} has {found} as its newest, and step {mark.step} was sealed '
    f'before: newer ones were removed or replaced. {_THEN}{run_dir}.'
  )
