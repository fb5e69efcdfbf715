# SPDX-License-Identifier: Apache-2.0
"""The trainer in a race: how many steps fit, and what its log says of them."""

import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from typing import Any

from benchmarks import race_data, record
from zaya_jax.config import exit_codes

Row = dict[str, Any]

NAME = 'zaya_jax'
WARM_UP = 60  # Steps, and what the last of them take.
# Shares of the time that are planned for. The last steps of a short run are
# faster than the mean of a whole one; the means of two seeds differed by 0.7 %.
_GUESSED, _KNOWN = 0.96, 0.985
# The schedule of a race, as the peer `strong` has it: a trapezoid of the rate.
_UP, _DOWN = 0.05, 0.45  # Shares of the steps in which it rises and falls.
_LOG = 10  # Steps between rows of the log, or a divisor; the last has one.
_POLL_S = 0.2
# What runs of one speed have in common.
_SAME = ('program', 'preset', 'flags')


def run(
  args: argparse.Namespace, more: list[str], trial: Row, rows: list[Row]
) -> Row:
  """Trains for as many steps as fit.

  Args:
    args: of `race.add_flags`.
    more: flags of the trainer.
    trial: of `race.missing`.
    rows: what is done on this machine; without one of the same settings a short
      run comes first.
  """
  same = [r for r in rows if all(r[k] == trial[k] for k in _SAME)]
  # The slowest known: the time must do.
  step_s = max((row['step_s'] for row in same), default=0.0)
  share = _KNOWN
  if not step_s:
    warm = _train(args, more, {**trial, 'target': None}, WARM_UP, every=0)
    step_s, share = warm['late_step_s'], _GUESSED
  steps = steps_in(trial['seconds'], step_s, share)
  every = args.every if args.every < steps else 0
  return _train(args, more, trial, steps, every)


def _train(args, more, trial, steps: int, every: int) -> Row:
  """One run of the trainer, until its last step or the target."""
  with tempfile.TemporaryDirectory() as folder:
    log = pathlib.Path(folder) / 'metrics.jsonl'
    command = [sys.executable, '-m', 'zaya_jax.main']
    command += flags_of(args, more, trial, steps, every, folder)
    began = time.time()
    with subprocess.Popen(
      command, cwd=record.ROOT, stdout=sys.stderr
    ) as process:
      while process.poll() is None:
        time.sleep(_POLL_S)
        if reached(curve(_rows(log), began), trial['target']):
          process.terminate()  # It saves and ends.
          process.wait()
    ends = exit_codes.DONE, exit_codes.STOPPED
    if process.returncode not in ends:
      raise SystemExit(f'{NAME} ended: {process.returncode}')
    lines = _rows(log)
    about = json.loads((pathlib.Path(folder) / 'config.json').read_text())
  steps_told = [row for row in lines if 'time/step_s' in row]
  found, last = curve(lines, began), steps_told[-1]
  train_s = seconds_of(lines)
  return {
    'device': about['devices']['kind'],
    'steps': last['step'],
    'planned_steps': steps,
    'train_s': train_s,
    'step_s': train_s / last['step'],
    'late_step_s': late_step_s(steps_told),
    # What the process did between its first and last step and the clock did
    # not count: evaluations, and what else stands beside training.
    'aside_s': last['time/elapsed_s']
    - steps_told[0]['time/elapsed_s']
    - train_s
    + steps_told[0]['time/step_s'],
    'train_loss': last['train/loss'],
    'bpb': found[-1]['bpb'],
    'curve': found,
    'log': log_of(steps_told),
  }


def flags_of(
  args: argparse.Namespace,
  more: list[str],
  trial: Row,
  steps: int,
  every: int,
  folder: str,
) -> list[str]:
  """Of the trainer: the preset on the shards, scored on all held-out text.

  The rate of `trial` has the schedule of a race. Flags in `more` win.
  """
  return [
    f'--flagfile={record.ROOT}/configs/{args.preset}.flags',
    '--mesh.replica=1',  # As peers: one device, whatever else is there.
    '--data.input=',
    f'--data.dir={args.data / race_data.SHARDS}',
    f'--eval.every={every}',
    '--eval.batches=0',
    '--checkpoint.every=0',
    f'--log.every={math.gcd(_LOG, every)}',
    '--log.sample_every=0',
    '--nolog.report',
    '--nolog.tensorboard',
    f'--optim.lr={trial["lr"]}',
    *trapezoid(steps),
    *more,
    f'--num_steps={steps}',
    f'--seed={trial["seed"]}',
    f'--run_dir={folder}',
  ]


def steps_in(seconds: float, step_s: float, share: float = _GUESSED) -> int:
  """How many steps fit into a share of the time."""
  return max(1, int(share * seconds / step_s))


def trapezoid(steps: int) -> list[str]:
  """Flags of the schedule of a race; that of a preset is for longer runs."""
  return [
    '--optim.lr_final=0',
    '--optim.schedule=wsd',
    f'--optim.warmup_steps={round(_UP * steps)}',
    f'--optim.decay_steps={round(_DOWN * steps)}',
  ]


def _rows(log: pathlib.Path) -> list[Row]:
  """The whole lines of a log that is being written."""
  text = log.read_text(encoding='utf-8') if log.exists() else ''
  return [json.loads(line) for line in text.split('\n')[:-1]]


def seconds_of(lines: Iterable[Row], stop: float = math.inf) -> float:
  """Seconds of the steps in a metrics.jsonl, up to the step `stop`.

  A row has the mean of the steps since the row before.
  """
  seconds, before = 0.0, 0
  for row in lines:
    if 'time/step_s' in row and row['step'] <= stop:
      seconds += row['time/step_s'] * (row['step'] - before)
      before = row['step']
  return seconds


def late_step_s(steps: list[Row]) -> float:
  """The median of what steps take in the second half of a run.

  Args:
    steps: rows of metrics.jsonl with the time of a step.
  """
  late = sorted(row['time/step_s'] for row in steps[len(steps) // 2 :])
  return late[len(late) // 2]


def log_of(steps: list[Row]) -> list[list[float | None]]:
  """Of each row: step, loss in nats, entropy of the routers, least load.

  Args:
    steps: rows of metrics.jsonl with a loss. A dense model has no routers.
  """
  return [
    [row['step'], round(row['train/loss'], 4)]
    + [row.get(f'moe/{name}') for name in ('entropy', 'load_min')]
    for row in steps
  ]


def curve(lines: list[Row], began: float) -> list[Row]:
  """The scores in a metrics.jsonl, with both clocks.

  Args:
    lines: of the file.
    began: when the command was given, in Unix seconds.
  """
  return [
    {
      'step': row['step'],
      'train_s': seconds_of(lines, row['step']),
      'whole_s': row['time/unix_s'] - began,
      'bpb': row['val/bpb'],
    }
    for row in lines
    if 'val/bpb' in row
  ]


def reached(scores: Iterable[Row], target: float | None) -> Row | None:
  """The first score at or below the target; None: there is none."""
  if target is None:
    return None
  return next((score for score in scores if score['bpb'] <= target), None)
