# SPDX-License-Identifier: Apache-2.0
"""What a run of `benchmarks.dial` is: its cell, and the flags of it."""

import argparse
import math
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.config.presets import dial as dial_lib

Row = dict[str, Any]
# What may be held while the dial goes on, and the flag of each.
HELD = {
  'experts': 'model.num_experts',
  'vocab': 'model.vocab_size',
  'row': 'data.seq_len',
}
CELL = ('dial', 'longer', *HELD)


def held(run: Row) -> list[str]:
  """Flags of what a cell holds."""
  return [f'--{flag}={run[key]}' for key, flag in HELD.items() if run[key]]


def name(run: Row) -> str:
  """Of its folder."""
  return '_'.join(f'{key}{run[key]:g}' for key in (*CELL, 'factor', 'seed'))


def inputs(more: list[str]) -> config_lib.Config:
  """The settings of all cells alike: what is trained on."""
  return config_lib.Config.parse(['--data.input=stdlib', *more])


def parse(run: Row, more: list[str]) -> config_lib.Config:
  """The settings of a cell, with the rule's learning rate."""
  words = [f'--dial={run["dial"]}', '--data.input=stdlib', *more, *held(run)]
  config = config_lib.Config.parse(words)
  if run['longer'] == 1:
    return config
  own = dial_lib.TOKENS_PER_PARAMETER * dial_lib.active(
    {name: config_lib.fields.value(config, name) for name in dial_lib.SHAPE}
  )
  tokens = round(own * run['longer'])
  return config_lib.Config.parse([*words, f'--tokens={tokens}'])


def flags_of(args: argparse.Namespace, run: Row, more: list[str]) -> list[str]:
  """The flags of a run: its cell, its rate, the same held-out text for all."""
  config = parse(run, more)
  model, optim, data = config.model, config.optim, config.data
  # Of a byte one token, of larger vocabularies about this.
  each = math.log2(model.vocab_size) / 3.3 if data.train_tokenizer else 1
  scored = args.score_bytes / each / (data.batch_size * data.seq_len)
  steps = config.in_steps().num_steps
  own = [
    f'--data.dir={args.work}/data_{model.vocab_size}',
    '--eval.every=0',
    f'--eval.batches={max(1, round(scored))}',
    f'--checkpoint.every={max(500, steps // 4)}',
    '--checkpoint.keep=1',
    '--log.sample_every=0',
    '--nolog.report',
    '--nolog.tensorboard',
  ]
  length = [f'--tokens={config.tokens}'] if config.tokens else []
  return [
    f'--dial={run["dial"]}',
    '--data.input=stdlib',
    *own,
    *more,
    *length,
    *held(run),
    f'--optim.lr={optim.lr * run["factor"]:g}',
    f'--optim.lr_final={optim.lr_final * run["factor"]:g}',
    f'--seed={run["seed"]}',
  ]
