# SPDX-License-Identifier: Apache-2.0
"""Every preset for one GPU, as it is, beside a dense model of the same size.

  python -m benchmarks.ladder [--presets=small,medium,large] [--FLAG ...]

Whole training steps on random tokens, optimizer included, in the way that the
trainer chooses (`zaya_jax.plan.cost.auto`). The peer has as many active
parameters without the embedding, the same width, vocabulary and tokens a step:
a GPT in PyTorch, compiled (`benchmarks/peers/dense_gpt.py`). Each program has a
process of its own; flags of the trainer are ours.

A fresh router sends most tokens to one expert: steps are timed after a warm-up
in which the balancing bias has spread them; the row says the load.
"""

import argparse
import collections
import json
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from benchmarks import record, scaling, timeline
from ops import dispatch
from zaya_jax import config as config_lib
from zaya_jax.model import flops
from zaya_jax.parallel import mesh as mesh_lib
from zaya_jax.train import state as state_lib
from zaya_jax.train import ways as ways_lib

_GROUP = 5  # Steps that are timed together: the host reads none of them.
# Bytes of the peer's logits, of 10 a number forward and back, in one part.
_LOGITS = 24e9


def main() -> None:
  """Measures, prints a table, writes benchmarks/results/ladder_h200.json."""
  args, more = _parser().parse_known_args()
  if args.case:
    config = parse(args.case, more)
    print(json.dumps(measure(config, args)))
    return
  about = record.circumstances('benchmarks.ladder', ('jax', 'jaxlib'))
  rows: list[dict[str, Any]] = []
  for name in args.presets.split(','):
    config = parse(name, more)
    count = flops.parameters(config.model)
    ours = _child(
      ['-m', 'benchmarks.ladder', f'--case={name}', *sys.argv[1:]],
      args.timeout_s,
    )
    rows.append(
      _row(name, 'zaya_jax', config, _ours_flops(config), ours)
      | {'active': count.active}
    )
    peer = peer_of(config) | {'steps': args.steps, 'warm_up': 10}
    command = ['-m', 'benchmarks.peers.dense_gpt', json.dumps(peer)]
    theirs = _child(command, args.timeout_s)
    rows.append(
      _row(name, 'dense GPT', config, dense_flops(peer), theirs)
      | {'active': 12 * peer['layers'] * peer['width'] ** 2, 'shape': peer}
    )
    print(table(rows[-2:], header=len(rows) == 2), flush=True)
    record.write(args.output, {**about, 'rows': rows})


def parse(name: str, more: Sequence[str]) -> config_lib.Config:
  """The preset `name` on one device; flags in `more` win."""
  return record.preset(name, ['--mesh.replica=1', *more])


def peer_of(config: config_lib.Config) -> dict[str, int]:
  """The dense model: as wide, and with as many active parameters.

  Its microbatches are as few as keep its logits below 24 GB.
  """
  model, data = config.model, config.data
  active = flops.parameters(model).active
  logits = 10.0 * model.vocab_size * data.batch_size * data.seq_len
  return {
    'layers': max(1, round(active / (12 * model.d_model**2))),
    'width': model.d_model,
    'vocab': model.vocab_size,
    'length': data.seq_len,
    'rows': data.batch_size,
    'parts': next(
      n
      for n in range(1, data.batch_size + 1)
      if data.batch_size % n == 0 and logits / n <= _LOGITS
    ),
  }


def dense_flops(peer: dict[str, int]) -> float:
  """Of a token, forward and backward, attention causal."""
  width, layers = peer['width'], peer['layers']
  each = 12 * width**2 + width * peer['length']  # Half of all scores.
  return 6.0 * (layers * each + peer['vocab'] * width)


def _ours_flops(config) -> float:
  return flops.per_token(config.model, config.data.seq_len).total


def measure(
  config: config_lib.Config, args: argparse.Namespace
) -> dict[str, Any]:
  """Trains a preset for some steps on the first device."""
  notes: list[str] = []
  devices = jax.devices()[:1]
  mesh = mesh_lib.make_mesh(config.mesh, devices)
  with jax.set_mesh(mesh), dispatch.use(**vars(config.ops)):
    ways = ways_lib.Ways(config, mesh)
    state = jax.jit(state_lib.make_init(config))()
    batch = scaling.random_batch(config, mesh)
    start = time.perf_counter()
    program = ways.compile(
      scaling.make_step, config, (state, batch), notes.append
    )
    compile_s = time.perf_counter() - start
    measured: dict[str, Any] = {}

    def steps(count):
      nonlocal state, measured
      start = time.perf_counter()
      for _ in range(count):
        state, measured = program(state, batch)
      jax.block_until_ready(measured)
      return (time.perf_counter() - start) / count

    losses = []
    for _ in range(max(1, args.warm_up // _GROUP)):
      steps(_GROUP)
      losses.append(float(measured['train/loss']))
    times = [steps(_GROUP) for _ in range(max(1, args.steps // _GROUP))]
    peak = scaling.peak_bytes(devices)
    kernels = kernels_of(lambda: steps(1))
  chosen = ways.apply(config)
  return {
    'device': devices[0].device_kind,
    'parameters': flops.parameters(config.model).total,
    'chosen': config.differences(chosen),
    'notes': [*ways.notes(), *notes, *dispatch.notes()],
    'step_s': statistics.median(times),
    'step_s_all': times,
    'compile_s': compile_s,
    'peak_bytes': peak,
    'compiled_bytes': ways_lib.compiled_bytes(program),
    'losses': losses,
    'load_max': float(measured['moe/load_max']),
    **kernels,
  }


def kernels_of(run: Callable[[], Any]) -> dict[str, Any]:
  """What `run` launches on a GPU: kernels and copies, and the longest.

  Returns:
    How many, their seconds together, and milliseconds of the 40 names that take
    longest; on a CPU None, None and nothing.
  """
  spans = [span for found in timeline.of(run).values() for span in found]
  longest: collections.Counter[str] = collections.Counter()
  for name, start, end in spans:
    longest[name[:80]] += (end - start) / 1e6
  return {
    'launches': len(spans) or None,
    'kernels_s': sum(longest.values()) / 1e3 or None,
    'kernels_ms': dict(longest.most_common(40)),
  }


def table(rows: Sequence[dict[str, Any]], header: bool = True) -> str:
  """The rows for people."""
  lines = [
    'preset    program     active   tokens/s    MFU  step ms  peak GB'
    '  launches  compile s'
  ]
  for row in rows:
    name = f'{row["preset"]:<9} {row["program"]:<10}'
    if 'error' in row:
      lines.append(f'{name}  {row["error"]}')
      continue
    lines.append(
      f'{name} {row["active"] / 1e6:6.1f}M {row["tokens_per_s"]:10,.0f} '
      f'{row["mfu"] or 0:6.1%} {1e3 * row["step_s"]:8.1f} '
      f'{(row["peak_bytes"] or 0) / 1e9:8.1f} {row["launches"] or 0:9,} '
      f'{row["compile_s"]:10.1f}'
    )
  return '\n'.join(lines if header else lines[1:])


def _row(name, program, config, flops_per_token, found) -> dict[str, Any]:
  """What a child has measured, with tokens per second and MFU."""
  tokens = config.data.batch_size * config.data.seq_len
  row = {'preset': name, 'program': program, 'tokens_per_step': tokens}
  if 'error' in found:
    return row | found
  rate = tokens / found['step_s']
  peak = (flops.peak_tflops(found['device']) or 0) * 1e12
  return row | {
    'tokens_per_s': rate,
    'mflop_per_token': flops_per_token / 1e6,
    'mfu': flops_per_token * rate / peak if peak else None,
    **found,
  }


def _child(command: list[str], timeout_s: int) -> dict[str, Any]:
  """The JSON that a program prints last, or what went wrong."""
  try:
    done = subprocess.run(
      [sys.executable, *command],
      cwd=record.ROOT,
      capture_output=True,
      text=True,
      timeout=timeout_s,
      check=True,
    )
  except subprocess.TimeoutExpired:
    return {'error': f'not done within {timeout_s} s'}
  except subprocess.CalledProcessError as error:
    print(error.stderr[-4000:], file=sys.stderr)
    words = error.stderr.strip().splitlines() or [f'{error.returncode}']
    return {'error': words[-1][:300]}
  return json.loads(done.stdout.splitlines()[-1])


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    allow_abbrev=False, description=(__doc__ or '').partition('\n')[0]
  )
  parser.add_argument('--presets', default='small,medium,large')
  parser.add_argument('--steps', type=int, default=20, help='that are timed')
  parser.add_argument('--warm_up', type=int, default=100, help='steps before')
  parser.add_argument('--timeout_s', type=int, default=400, help='of each')
  parser.add_argument('--case', help='one preset; prints JSON')
  parser.add_argument(
    '--output', type=pathlib.Path, default=record.RESULTS / 'ladder_h200.json'
  )
  return parser


if __name__ == '__main__':
  main()
