# SPDX-License-Identifier: Apache-2.0
"""Seconds until a held-out loss, of nanoGPT's recipe and of zaya_jax.

  python -m benchmarks.time_to_loss --input=input.txt --target=1.88

Both programs run one after the other on the same text, whose last tenth is held
out. The clock starts with the process, so imports and compilation count, and
stops at the first evaluation at or below the target. Needs PyTorch beside
zaya_jax: the environment that `make parity` makes has both.
"""

import argparse
import hashlib
import json
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks import record

# One evaluation: 'step', 'val/loss' in nats per character, 'time/elapsed_s' in
# seconds since the process started. A run is a list of these, in order.
Evaluation = dict[str, float]

# What a checkout of nanoGPT prints.
_PRINTED = re.compile(r'step (\d+): train loss [\d.]+, val loss ([\d.]+)')

# The recipe of its README for a CPU.
_NANOGPT_FLAGS = (
  '--device=cpu --compile=False --eval_iters=20 --log_interval=1 '
  '--block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 '
  '--max_iters=2000 --lr_decay_iters=2000 --dropout=0.0'
).split()


def main() -> None:
  """Runs both, prints the comparison and writes it to benchmarks/results."""
  args = _parse_args()
  text = _describe(args.input)
  about = record.circumstances('benchmarks.time_to_loss', ('jax', 'torch'))
  with tempfile.TemporaryDirectory() as folder:
    peer = run_peer(args.input, args.peer_dir)
    ours = run_zaya(args.input, pathlib.Path(folder), args.flags)
  result = {**about, 'text': text, **compare(peer, ours, args.target)}
  print(json.dumps(result, indent=2))
  record.write(args.output, result)


def compare(
  peer: list[Evaluation], ours: list[Evaluation], target: float | None
) -> dict[str, Any]:
  """Puts two runs side by side.

  Args:
    peer: the run of nanoGPT.
    ours: the run of zaya_jax.
    target: nats per character; None: what the peer ends with.

  Returns:
    The target; of each run, the seconds to it (None: not reached) and all its
    evaluations; and 'ratio', our seconds over the peer's (None if we did not
    reach the target). A peer that ends above the target counts with its whole
    run, the least that it can have needed.
  """
  target = peer[-1]['val/loss'] if target is None else target
  peer_s, our_s = seconds_to(peer, target), seconds_to(ours, target)
  peer_at_least_s = peer[-1]['time/elapsed_s'] if peer_s is None else peer_s
  return {
    'target': target,
    'peer': {'seconds': peer_s, 'evaluations': peer},
    'zaya_jax': {'seconds': our_s, 'evaluations': ours},
    'ratio': None if our_s is None else our_s / peer_at_least_s,
  }


def seconds_to(run: list[Evaluation], target: float) -> float | None:
  """Seconds until the first evaluation at or below `target`, else None."""
  reached = (e['time/elapsed_s'] for e in run if e['val/loss'] <= target)
  return next(reached, None)


def run_peer(text: pathlib.Path, peer_dir: pathlib.Path | None) -> list:
  """Runs nanoGPT's recipe: ours, or a checkout of nanoGPT in `peer_dir`.

  A checkout gets the text as its data set `zaya_jax_text`.

  Returns:
    The evaluations, timed by the lines that the process prints.
  """
  if peer_dir is None:
    return _watch(
      [sys.executable, '-m', 'benchmarks.peers.nanogpt', f'--input={text}'],
      record.ROOT,
    )
  _write_data(text, peer_dir / 'data' / 'zaya_jax_text')
  config = ['config/train_shakespeare_char.py', '--dataset=zaya_jax_text']
  return _watch(
    [sys.executable, 'train.py', *config, *_NANOGPT_FLAGS], peer_dir
  )


def run_zaya(
  text: pathlib.Path, folder: pathlib.Path, flags: list[str]
) -> list[Evaluation]:
  """Runs configs/shakespeare_char.flags, with nothing compiled before.

  Args:
    text: what to train on.
    folder: empty; takes the run.
    flags: more flags, which win over the configuration.

  Returns:
    The evaluations in the run's metrics.jsonl.
  """
  command = [
    *(sys.executable, '-m', 'zaya_jax.main'),
    '--flagfile=configs/shakespeare_char.flags',
    f'--data.input={text}',
    f'--run_dir={folder}/run',
    *flags,
  ]
  cold = {'JAX_COMPILATION_CACHE_DIR': f'{folder}/cache'}
  subprocess.run(
    command,
    cwd=record.ROOT,
    env=os.environ | cold,
    stdout=sys.stderr,
    check=True,
  )
  lines = (folder / 'run' / 'metrics.jsonl').read_text().splitlines()
  return [
    {name: record[name] for name in ('step', 'val/loss', 'time/elapsed_s')}
    for record in map(json.loads, lines)
    if 'val/loss' in record
  ]


def _watch(command: list[str], folder: pathlib.Path) -> list[Evaluation]:
  """Runs `command`, stamping each evaluation that it prints."""
  start = time.monotonic()
  run = []
  with subprocess.Popen(
    command,
    cwd=folder,
    env=os.environ | {'PYTHONUNBUFFERED': '1'},
    stdout=subprocess.PIPE,
    text=True,
  ) as process:
    for line in process.stdout:
      if evaluation := _parse(line):
        elapsed = {'time/elapsed_s': time.monotonic() - start}
        run.append(evaluation | elapsed)
        print(json.dumps(run[-1]), file=sys.stderr)
  if process.returncode:
    sys.exit(f'The peer ended with code {process.returncode}: {command}')
  return run


def _parse(line: str) -> Evaluation | None:
  if line.startswith('{'):
    record = json.loads(line)
    return {'step': record['step'], 'val/loss': record['val/loss']}
  if printed := _PRINTED.match(line):
    return {'step': int(printed[1]), 'val/loss': float(printed[2])}
  return None


def _write_data(text: pathlib.Path, folder: pathlib.Path) -> None:
  """Writes what nanoGPT's prepare.py would."""
  from benchmarks.peers import nanogpt  # Imports torch.

  train, val, vocab_size = nanogpt.encode(text.read_text(encoding='utf-8'))
  folder.mkdir(parents=True, exist_ok=True)
  train.tofile(folder / 'train.bin')
  val.tofile(folder / 'val.bin')
  (folder / 'meta.pkl').write_bytes(pickle.dumps({'vocab_size': vocab_size}))


def _describe(path: pathlib.Path) -> dict[str, Any]:
  """What identifies the text; it must have one byte per character."""
  data = path.read_bytes()
  if not data.isascii():
    sys.exit(
      f'--input={path} is not ASCII: nanoGPT counts characters and zaya_jax '
      'bytes, so their losses would not compare; choose an ASCII text.'
    )
  return {
    'characters': len(data),
    'distinct': len(set(data)),
    'sha256': hashlib.sha256(data).hexdigest(),
  }


def _parse_args() -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description='Further flags are passed to zaya_jax.main.'
  )
  parser.add_argument(
    '--input', type=lambda path: pathlib.Path(path).resolve(), required=True
  )
  parser.add_argument(
    '--target', type=float, help='nats per character; default: as the peer ends'
  )
  parser.add_argument(
    '--peer_dir',
    type=lambda path: pathlib.Path(path).resolve(),
    help='a checkout of nanoGPT to run instead of benchmarks/peers/nanogpt.py',
  )
  parser.add_argument(
    '--output', type=pathlib.Path, default=record.RESULTS / 'time_to_loss.json'
  )
  args, args.flags = parser.parse_known_args()
  return args


if __name__ == '__main__':
  main()
