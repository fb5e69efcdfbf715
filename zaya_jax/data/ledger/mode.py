# SPDX-License-Identifier: Apache-2.0
"""--mode=ledger: what a run was trained on, and whether that can be proven."""

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

from pipelines import errors as data_errors
from pipelines.shards import copies
from zaya_jax import config as config_lib
from zaya_jax.checkpoint import errors
from zaya_jax.config import exit_codes
from zaya_jax.data import plain
from zaya_jax.data.ledger import chain, content, origin, story, totals
from zaya_jax.runtime import durable, rows

# What a sample reads at most, but for its first step.
_SAMPLE_STEPS, _SAMPLE_TOKENS = 64, 2**26
_WRONG = (errors.CheckpointError, data_errors.DataError)


def main(config: config_lib.Config) -> int:
  """Shows totals and checks, or with --ledger.step the documents of a step.

  With --output the recipe that begins as a plain run did is written there.

  Returns:
    The exit code: 3 if a check failed.

  Raises:
    LedgerError: if there is no ledger, or no such step.
    DataError: if the shards of a step cannot be read.
    UsageError: if there is no plain run, or something in the place of --output.
  """
  copies.keep_within(config.data.copies_gb)
  run_dir, show = config.source or config.run_dir, _printer(config.json)
  if config.output:
    _write_recipe(run_dir, config.output)
    return exit_codes.DONE
  if config.ledger.step:
    for row in _documents(run_dir, config.ledger.step, config.data.dir):
      show(row)
    return exit_codes.DONE
  code = exit_codes.DONE
  for row in check(run_dir, config.ledger.verify, config.data.dir):
    show(row)
    if not row.get('valid', True):
      code = exit_codes.UNUSABLE
  return code


def ask(
  source: str, *, step: int = 0, verify: str = 'sample'
) -> list[dict[str, Any]]:
  """What --mode=ledger says of a run, for Python.

  Args:
    source: the run directory.
    step: whose documents to list; 0: totals and checks.
    verify: as `check`.

  Returns:
    A row for each document; or as `check`, which tells a failure by `valid`.

  Raises:
    LedgerError: if there is no ledger, or no such step.
    DataError: if the shards of a step cannot be read.
  """
  return list(_documents(source, step) if step else check(source, verify))


def check(
  run_dir: str, how: str, folders: tuple[str, ...] = ()
) -> Iterator[dict[str, Any]]:
  """Yields totals, what was left over, and a row for each check.

  Args:
    run_dir: the run directory.
    how: 'chain' needs no shards, 'sample' reads some steps, 'all' every one.
    folders: of the shards, where they are not where they were.

  Returns:
    As `totals`; of a check its name, valid, and said, or the reason.
  """
  try:
    told = story.read(run_dir)
  except _WRONG as error:
    yield _row('chain', reason=str(error))
    return
  yield from totals.by_phase(told)
  yield from totals.left_over(told)
  yield _row('chain', said=_chain(told))
  yield _row('rows', said=_rows(told))
  if how == 'chain':
    return
  try:
    shards = content.Shards(run_dir, told.reads, folders)
    if how == 'all':
      shards.verify()
  except _WRONG as error:
    yield _row('shards', reason=str(error))
    return
  names = ', '.join(source.name for source in told.reads.sources)
  yield _row('shards', said=f'{names}: as the run read them')
  read: Callable = _all if how == 'all' else _sample
  try:
    with shards:
      yield _row('content', said=read(told, shards))
  except _WRONG as error:
    yield _row('content', reason=str(error))


def _write_recipe(run_dir: str, output: str) -> None:
  """Writes what a plain run was trained by, as the first phases of a recipe."""
  step, about = story.newest(run_dir)
  why = ''
  if step is None:
    why = f'{run_dir} has no checkpoint, and nothing to begin a recipe with'
  elif known := about.get('recipe'):
    why = f'{run_dir} was trained by {known["path"]}; add phases to that'
  elif os.path.exists(output):
    why = 'there is such a file; choose another name'
  if why or step is None:
    raise config_lib.UsageError(f'--output={output}: {why}.')
  os.makedirs(os.path.dirname(output) or '.', exist_ok=True)
  durable.replace(output, plain.text(run_dir, about, step).encode())
  print(
    f'{output} says what {run_dir} was trained by; write the phases to come '
    f'behind it, and go on with --recipe={output}'
  )


def _documents(run_dir, step, folders=()) -> Iterator[dict[str, Any]]:
  """Yields where the rows of a step come from."""
  told = story.read(run_dir)
  shards = content.Shards(run_dir, told.reads, folders)
  yield from origin.of_step(told, shards, step)


def _printer(json: str) -> Callable[[dict[str, Any]], None]:
  """JSON lines, or for people columns, and a line for each check."""
  columns = rows.Rows(json)

  def show(row):
    if 'check' not in row or rows.is_json(json):
      return columns.print(row)
    mark = 'ok' if row['valid'] else 'WRONG'
    said = row.get('said') or row['reason']
    print(f'{mark:<6}{row["check"]:<9}{said}', flush=True)

  return show


def _row(name: str, *, said: str = '', reason: str = '') -> dict[str, Any]:
  if reason:
    return {'check': name, 'valid': False, 'reason': reason}
  return {'check': name, 'valid': True, 'said': said}


def _chain(told: story.Story) -> str:
  """What the chain proves."""
  text = f'{told.count:,} lines'
  if told.sealed is None:
    return f'{text}; there is no checkpoint to vouch for them'
  text += f'; checkpoint {told.sealed} vouches for {told.sealed_lines:,}'
  behind = told.count - told.sealed_lines
  text += f', and {behind:,} are newer' if behind else ''
  return f'{text}; {told.torn} bytes of half a line' if told.torn else text


def _rows(told: story.Story) -> str:
  """What is known of all rows."""
  row, step = told.first
  text = (
    f'{row:,} to {told.now:,}, each once, as many of each source as planned'
  )
  if step:
    text += f'; the ledger begins after step {step:,}'
  return text


def _all(told: story.Story, shards: content.Shards) -> str:
  seen, places, steps = content.Seen(told.reads), 0, 0
  for line in _readable(told):
    if line.outcome == 'left_out':
      content.see(line, seen)
    else:
      places += content.check(shards, line, seen=seen)
      steps += line.steps[1] - line.steps[0]
  return f'all {steps:,} steps, {places:,} tokens; no window twice in an epoch'


def _sample(told: story.Story, shards: content.Shards) -> str:
  """Reads the last step, and others at random."""
  lines = [x for x in _readable(told) if x.outcome != 'left_out']
  if not lines:
    return 'no steps'
  ends = lines[0].steps[0], lines[-1].steps[1]
  chosen = [ends[1], ends[0] + 1]
  chosen += [random.randint(ends[0] + 1, ends[1]) for _ in range(_SAMPLE_STEPS)]
  places, done = 0, set()
  for step in dict.fromkeys(chosen):
    line = next(x for x in lines if x.steps[0] < step <= x.steps[1])
    more = line.batch_size * line.seq_len
    if done and (len(done) == _SAMPLE_STEPS or places + more > _SAMPLE_TOKENS):
      break
    places += content.check(shards, line, [step])
    done.add(step)
  return (
    f'{len(done):,} of {ends[1] - ends[0]:,} steps, {places:,} tokens '
    '(--ledger.verify=all reads all)'
  )


def _readable(told) -> Iterator[story.Line]:
  """Lines of what is read now; of other shards nothing can be said.

  A source may have been prepared anew before its first row.

  Raises:
    LedgerError: if the run read rows of others before.
  """
  for line in told.lines:
    for count, then, now in zip(
      line.sources, line.reads.sources, told.reads.sources, strict=False
    ):
      if count and then.manifest != now.manifest:
        raise chain.LedgerError(
          f'Line {line.number:,} is of other shards of {then.name} than the '
          'run has read since; what it was given cannot be proven.'
        )
    yield line
