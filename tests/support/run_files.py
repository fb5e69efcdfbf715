# SPDX-License-Identifier: Apache-2.0
"""The files of a run as training writes them, without the training."""

import json
import math
import pathlib
from typing import Any

import numpy as np

from zaya_jax import config as config_lib

HOSTILE = (
  '</script><script>document.title="taken"</script>'
  '<img src=x onerror=\'document.title="taken"\'> {{7*7}} &lt; %{y} \u2028 $x$'
)


def write(
  folder: pathlib.Path,
  *,
  num_steps: int = 200,
  done: int | None = None,
  every: int = 10,
  layers: int = 3,
  experts: int = 4,
  prompt: str = 'def',
  restart_at: int = 0,
  speed: float = 1.0,
) -> pathlib.Path:
  """Writes a run of `done` steps (None: all) with a row every `every` steps."""
  folder.mkdir(parents=True, exist_ok=True)
  model = config_lib.ModelConfig(num_layers=layers, num_experts=experts)
  config = config_lib.Config(
    run_dir=str(folder), num_steps=num_steps, prompt=prompt, model=model
  )
  facts = {
    'config': {
      'num_steps': num_steps,
      'prompt': prompt,
      'model': {
        'num_layers': layers,
        'd_model': model.d_model,
        'num_experts': experts,
        'd_expert': model.d_expert,
        'skip': 'zero',
      },
    },
    'devices': {'platform': 'gpu', 'kind': 'AMD Instinct MI300X', 'count': 8},
    'versions': {'python': '3.11.7', 'jax': '0.10.2'},
  }
  (folder / 'config.json').write_text(json.dumps(facts))
  (folder / 'config.flags').write_text(config.to_flagfile())
  stretch = {'rows': None, 'seq_len': config.data.seq_len}
  sources = [{'name': 'text', 'tokens': 10**6}]
  opened = {'ledger': 1, 'sources': sources, 'stretches': [stretch]}
  size = (done or num_steps) * config.data.batch_size
  line = {'rows': [0, size], 'sources': [size], 'phase': ''}
  lines(folder / 'ledger.jsonl', [opened, {**line, 'outcome': 'trained'}])
  rng = np.random.default_rng(0)
  rows, loads = [], []
  for step in [1, *range(every, (done or num_steps) + 1, every)]:
    rows.append(_row(step, num_steps, restart_at, speed, rng))
    if step % (10 * every) == 0:
      rows.append(_evaluation(step, rows[-1]))
      clock = {'time/elapsed_s': rows[-1]['time/elapsed_s']}
      saved = {'time/checkpoint_s': 2.5, 'tokens': step * 4096}
      rows.append({'step': step, **saved, **clock})
    if step == 1 or step % (-(-num_steps // 1000) * every) == 0:
      loads.append(_load(step, num_steps, layers, experts, rng))
  lines(folder / 'metrics.jsonl', rows)
  lines(folder / 'experts.jsonl', loads)
  samples = folder / 'samples'
  samples.mkdir(exist_ok=True)
  for step in (done or num_steps) // 2, done or num_steps:
    text = f'{prompt} f(x):\n  return {step}\n'
    (samples / f'step_{step:06d}.txt').write_text(text)
  return folder


def lines(path: pathlib.Path, rows: list[dict[str, Any]]) -> None:
  """Writes one JSON object a line."""
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))


def _row(step, num_steps, restart_at, speed, rng):
  loss = 1.4 + 4.5 * math.exp(-6 * speed * step / num_steps)
  return {
    'step': step,
    'tokens': step * 4096,
    'train/loss': loss + 0.03 * rng.normal(),
    'optim/lr': 1e-3 * (1 + math.cos(math.pi * step / num_steps)) / 2,
    'optim/grad_norm': 0.3 + rng.exponential(0.2) + loss / 5,
    'optim/skipped': 2.0 * (step > num_steps * 0.6),
    'moe/load_max': 1.6 + rng.random(),
    'moe/load_min': 0.2 + 0.3 * rng.random(),
    'moe/entropy': 1 - 0.4 * math.exp(-9 * step / num_steps),
    'moe/skip': 0.08,
    'throughput/tokens_per_second': 8e5 + 1e4 * rng.normal(),
    'throughput/mfu': 0.38 + 0.005 * rng.normal(),
    'time/step_s': 0.5 + 0.02 * rng.random(),
    'time/data_s': 0.002 + 0.001 * rng.random(),
    'time/elapsed_s': 30 + 0.5 * (step - restart_at * (step > restart_at > 0)),
  }


def _evaluation(step, row):
  loss = row['train/loss'] + 0.05
  bpb = loss / math.log(2) / 1.3
  clock = {'time/elapsed_s': row['time/elapsed_s']}
  values = {'val/loss': loss, 'val/bpb': bpb, 'val/zlib_bpb': 2.02}
  return {'step': step, 'tokens': row['tokens'], **values, **clock}


def _load(step, num_steps, layers, experts, rng):
  unrest = 2 * math.exp(-8 * step / num_steps) + 0.1
  weights = np.exp(unrest * rng.normal(size=(layers, experts + 1)))
  weights[:, -1] *= 0.3
  weights[-1, 0] = 0
  share = weights / weights.sum(1, keepdims=True)
  bias = -0.1 * unrest * rng.normal(size=share.shape)
  rounded = {'share': share.round(4).tolist(), 'bias': bias.round(5).tolist()}
  return {'step': step, **rounded}
