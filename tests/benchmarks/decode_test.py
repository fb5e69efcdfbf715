# SPDX-License-Identifier: Apache-2.0
"""What a step must read, counted by hand, and the comparison."""

import argparse
import dataclasses

import jax
import numpy as np
import pytest

from benchmarks import decode
from tests.support import tiny
from zaya_jax.hub import config as hub_config
from zaya_jax.model import zaya


def test_bytes_of_a_step_are_the_weights_that_are_used_and_the_cache():
  model = tiny.config(num_layers=2, num_experts=3, d_model=16, d_expert=8)
  params, _ = jax.eval_shape(lambda: zaya.init(model, jax.random.key(0)))
  found = decode.bytes_of_step(model, params, 5, 7, chosen=4)
  expert = 3 * 16 * 8
  others = sum(
    leaf.size
    for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    if 'experts' not in jax.tree_util.keystr(path)
  )
  # Keys and values of 2 heads of 4 channels in 2 layers.
  cache = 5 * 7 * 2 * 2 * 2 * 4
  assert found == 2 * (others + 4 * expert + cache)
  fewer = decode.bytes_of_step(model, params, 5, 7, chosen=3)
  assert found - fewer == 2 * expert


def test_packed_matrices_count_with_their_own_bytes():
  model = tiny.config(num_layers=2, num_experts=3, d_model=16, d_expert=8)
  params, buffers = tiny.arrays(model)
  args = decode.parse(['--quant=int4', '--quant_targets=experts'])
  args.kind, *_ = args.quant
  few, _ = decode.rounded(args, model, params, buffers)
  found, wide = (
    decode.bytes_of_step(model, p, 5, 7, chosen=4) for p in (few, params)
  )
  # Half a byte a number, and two bytes for each group of 16 or 8.
  assert wide - found == 4 * (1.5 * 3 * 16 * 8 - 2 * (16 + 16))


@pytest.mark.parametrize('preset, layers', [('zaya1_8b', 8), ('small', 8)])
def test_the_peer_has_the_shape_of_the_preset(preset, layers):
  model = decode.model_of(decode.parse([f'--preset={preset}']))
  theirs = decode.shape(model)
  assert theirs['num_hidden_layers'] == layers
  again = hub_config.translate('config.json', theirs | {'model_type': 'zaya'})
  assert dataclasses.replace(again, dtype=model.dtype) == model
  wider = decode.parse([f'--preset={preset}', '--model.d_expert=8'])
  assert decode.shape(decode.model_of(wider)) != theirs


def test_the_fastest_way_of_the_peer_counts():
  row = {'batch': 1, 'context': 8, 'tokens_per_second': 100.0}
  peers = [
    {'batch': 1, 'context': 8, 'tokens_per_second': 10.0},
    {'batch': 1, 'context': 8, 'tokens_per_second': 25.0},
    {'batch': 1, 'context': 8, 'error': 'out of memory'},
    {'batch': 2, 'context': 8, 'tokens_per_second': 99.0},
  ]
  (found,) = decode.table([row, {'device': 'cpu'}], peers)
  assert (found['transformers_tokens_per_second'], found['ratio']) == (
    25.0,
    4.0,
  )
  (found,) = decode.table([row], [])
  assert found['ratio'] is None


@pytest.mark.long
def test_our_side_measures_every_case(capsys):
  args = decode.parse(
    ['--preset=quickstart', '--model.num_layers=1', '--batch=1,2']
    + ['--context=8', '--tokens=3', '--repeats=1', '--kind=int4']
  )
  assert isinstance(args, argparse.Namespace)
  decode.ours(args)
  lines = capsys.readouterr().out.splitlines()
  assert len(lines) == 3 and np.all(['"batch"' in line for line in lines[:2]])
