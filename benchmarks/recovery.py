# SPDX-License-Identifier: Apache-2.0
"""A rank is killed on real devices: when training goes on, and how it ends.

    python -m benchmarks.recovery --preset=small --ranks=2 [--FLAG ...]

Two supervised runs of a preset, one process a GPU, on Python's own library: in
the second, rank 1 gets SIGKILL in a step. What that costs is in the incidents
of the supervisor; the losses and the state in the end are compared with those
of the first, which also compiled. Flags of the trainer may follow, but
--num_steps, which is --steps. With --platform=cpu a rank has one device of a
CPU.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks import record
from zaya_jax.runtime import faults

_PROGRAM = (sys.executable, '-m', 'zaya_jax.main')


def main() -> None:
  """Runs both, prints and keeps the result."""
  args, more = _parser().parse_known_args()
  about = record.circumstances('benchmarks.recovery', ('jax', 'jaxlib'))
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    rows = [
      {'run': label, **run(args, folder / label, more, wanted)}
      for label, wanted in (
        ('undisturbed', ''),
        ('killed', f'kill@step:{args.kill_at}:1:1'),
      )
    ]
  first, killed = rows
  if wrong := [r for r in rows if r['exit_code'] or not r['state_hash']]:
    raise SystemExit(f'these did not end with a checkpoint: {wrong}')
  if 'killed_at_step' not in killed:
    raise SystemExit(f'no rank was killed at step {args.kill_at}: {killed}')
  equal = {
    'losses_equal': first.pop('losses') == killed.pop('losses'),
    'state_equal': first['state_hash'] == killed['state_hash'],
  }
  result = {**about, 'rows': rows, **equal}
  print(json.dumps({'rows': rows, **equal}, indent=2))
  record.write(args.output, result)


def run(
  args: argparse.Namespace, run_dir: pathlib.Path, more: list[str], wanted: str
) -> dict[str, Any]:
  """One supervised run.

  Args:
    args: preset, ranks, steps.
    run_dir: of the run.
    more: flags of the trainer, which win.
    wanted: faults, as `zaya_jax.runtime.faults` has them.

  Returns:
    Its exit code; seconds until it trained; after the fault, until it was seen
    and until a step was done again; hash of the state and all losses.
  """
  cache = str(run_dir.parent / 'compiled')
  env = {'JAX_COMPILATION_CACHE_DIR': cache, **os.environ}
  if args.platform == 'cpu':
    env['JAX_PLATFORMS'] = 'cpu'
  start = time.time()
  done = subprocess.run(
    [*_PROGRAM, *_flags(args, run_dir), *more],
    cwd=record.ROOT,
    env=env | {faults.VARIABLE: wanted},
    stdout=sys.stderr,
    timeout=args.timeout_s,
    check=False,
  )
  return {
    'exit_code': done.returncode,
    'ranks': args.ranks,
    'whole_s': time.time() - start,
    **_seconds(run_dir, start),
    **_end(run_dir, args.steps),
  }


def _flags(args: argparse.Namespace, run_dir: pathlib.Path) -> list[str]:
  return [
    f'--flagfile={record.ROOT}/configs/{args.preset}.flags',
    '--mode=supervise',
    f'--run_dir={run_dir}',
    f'--aegis.ranks_per_node={args.ranks}',
    f'--num_steps={args.steps}',
    f'--checkpoint.every={args.save_every}',
    '--eval.every=0',
    '--log.every=1',
    '--log.sample_every=0',
    '--generate.max_tokens=1',
  ]


def _seconds(run_dir: pathlib.Path, start: float) -> dict[str, Any]:
  """Until it trained, and what a fault cost, by the supervisor's incidents."""
  incidents = rows(run_dir / 'incidents.jsonl')
  trains = [row['time'] for row in incidents if row['kind'] == 'running']
  found: dict[str, Any] = {
    'trains_s': trains[0] - start if trains else None,
    'generations': len(trains),
  }
  for fault in rows(run_dir / 'aegis' / 'faults.jsonl'):
    seen = [r['time'] for r in incidents if r['kind'] in ('exit', 'hang')]
    after = [t for t in trains if t > fault['time']]
    found |= {
      'killed_at_step': fault['step'],
      'detect_s': min(seen) - fault['time'] if seen else None,
      'recover_s': after[0] - fault['time'] if after else None,
    }
  return found


def _end(run_dir: pathlib.Path, steps: int) -> dict[str, Any]:
  """The state in the end, and all losses."""
  source = f'{run_dir}/checkpoints/{steps}'
  listed = subprocess.run(
    [*_PROGRAM, '--mode=checkpoints', f'--source={source}'],
    cwd=record.ROOT,
    env={**os.environ, 'JAX_PLATFORMS': 'cpu'},
    stdout=subprocess.PIPE,
    text=True,
    check=False,
  )
  lines = listed.stdout.splitlines()
  sealed = json.loads(lines[-1]) if listed.returncode == 0 else {}
  metrics = rows(run_dir / 'metrics.jsonl')
  losses = {r['step']: r['train/loss'] for r in metrics if 'train/loss' in r}
  return {
    'state_hash': sealed.get('state_hash'),
    'last_loss': losses.get(steps),
    'losses': losses,
  }


def rows(path: pathlib.Path) -> list[dict[str, Any]]:
  """Whole lines of a file of JSON; a file that is not there has none."""
  if not path.exists():
    return []
  lines = path.read_text(encoding='utf-8').split('\n')[:-1]
  return [json.loads(line) for line in lines if line]


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    allow_abbrev=False, description=(__doc__ or '').partition('\n')[0]
  )
  parser.add_argument('--preset', default='small')
  parser.add_argument('--ranks', type=int, default=2)
  parser.add_argument('--steps', type=int, default=120)
  parser.add_argument('--save_every', type=int, default=40)
  parser.add_argument('--kill_at', type=int, default=65, help='step')
  parser.add_argument('--platform', choices=('gpu', 'cpu'), default='gpu')
  parser.add_argument('--timeout_s', type=float, default=400)
  parser.add_argument(
    '--output', type=pathlib.Path, default=record.RESULTS / 'recovery.json'
  )
  return parser


if __name__ == '__main__':
  main()
