# SPDX-License-Identifier: Apache-2.0
"""First and last lines of a run: its size, what came out, what is next."""

import importlib.util
import os
import shlex
import sys
from collections.abc import Mapping, Sequence

from zaya_jax import config as config_lib
from zaya_jax.metrics import text, window
from zaya_jax.runtime import clock


def python() -> str:
  """How to call this Python from the folder in which the user is."""
  near = os.path.relpath(sys.executable)
  return 'python' if near.startswith(os.pardir) else shlex.quote(near)


def opening(
  *,
  num_params: int,
  active_params: int,
  flops_per_token: float,
  devices: str,
  peak_flops: float | None,
) -> list[str]:
  """Says how large the model is and what it runs on."""
  cost = text.short(flops_per_token)
  peak = f', together {text.short(peak_flops)} FLOP/s' if peak_flops else ''
  return [
    f'model   {num_params:,} parameters, {active_params:,} active without '
    f'embedding, {cost} FLOP to train on a token',
    f'device  {devices}{peak}',
  ]


def closing(
  config: config_lib.Config,
  *,
  run_dir: str,
  step: int,
  tokens: int,
  best: Mapping[str, float] | None,
  checkpoint: str | None,
  data: Sequence[str] = (),
) -> list[str]:
  """Writes the closing summary.

  Args:
    config: of the run.
    run_dir: of the run.
    step: steps done.
    tokens: trained on.
    best: the row of metrics.jsonl with the best evaluation, if there is one.
    checkpoint: the newest one, if there is one.
    data: what was read, a line for each phase.
  """
  done = step >= config.num_steps
  lines = [
    f'{"done" if done else "stopped"}: {step} of {config.num_steps} steps, '
    f'{text.short(tokens)} tokens, {text.duration(clock.elapsed())} since '
    'the start'
  ]
  if best:
    lines.append(_held_out(best))
  for i, line in enumerate(data):
    lines.append(f'  {"" if i else "data":<10}  {line}')
  if peak := window.peak_bytes():
    lines.append(
      f'  memory      {peak / 1e9:.3g} of {window.limit_bytes() / 1e9:.3g} GB '
      'of a device at most'
    )
  if config.log.report:
    lines.append(f'  page        {_near(run_dir)}/report.html')
  if checkpoint:
    lines += [f'  checkpoint  {_near(checkpoint)}', 'next:']
    lines += [f'  {line}' for line in _commands(config, run_dir, done)]
  return lines


def _near(path: str) -> str:
  """The path from where the user is; of what lies elsewhere, all of it."""
  near = os.path.relpath(path)
  return os.path.abspath(path) if near.startswith(os.pardir) else near


def _held_out(best: Mapping[str, float]) -> str:
  zlib = best.get('val/zlib_bpb')
  beside = f' (zlib {zlib:.3f})' if zlib else ''
  return (
    f'  held out    {best["val/bpb"]:.3f} bits per byte at step '
    f'{best["step"]}{beside}'
  )


def _commands(config: config_lib.Config, run_dir: str, done: bool) -> list[str]:
  """Generate, go on (a finished run twice as long), look at the curves."""
  program = f'{python()} -m zaya_jax.main'
  where = shlex.quote(f'--run_dir={run_dir}')
  how = config.generate
  prompt = config.prompt or ('Hello!' if how.chat else 'The ')
  prompt = shlex.quote(f'--prompt={prompt}')
  chat = ' --generate.chat' if how.chat else ''
  again = shlex.quote(f'--flagfile={run_dir}/config.flags')
  longer = f' --num_steps={2 * config.num_steps}' if done else ''
  if done and config.course:
    longer = f'  # after one more [[phase]] in {config.recipe}'
  repeats = f' --generate.no_repeat={how.no_repeat}' if how.no_repeat else ''
  commands = [
    f'{program} --mode=generate {where} {prompt}{chat}{repeats}',
    f'{program} {again}{longer}',
  ]
  if config.log.tensorboard:
    if not importlib.util.find_spec('tensorboard'):
      commands.append(f'{python()} -m pip install tensorboard')
    logs = shlex.quote(f'--logdir={run_dir}/tensorboard')
    commands.append(f'{python()} -m tensorboard.main {logs}')
  return commands
