# SPDX-License-Identifier: Apache-2.0
"""The steps of `zaya_numpy`, or of a mutant, under the conformance kit's names.

Values are taken from the variables of its functions as they return, so that
each is one that it really used. Rows go in one by one, without padding.
"""

import pathlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.support.reference import zaya_numpy
from zaya_jax import config as config_lib


def mutant(*changes: tuple[str, str]) -> types.ModuleType:
  """`zaya_numpy` with some text replaced; each must be there once."""
  text = pathlib.Path(zaya_numpy.__file__).read_text()
  for old, new in changes:
    assert text.count(old) == 1, f'{old!r} is there {text.count(old)} times'
    text = text.replace(old, new)
  module = types.ModuleType('mutant')
  module.__file__ = 'mutant of zaya_numpy'
  exec(compile(text, module.__file__, 'exec'), module.__dict__)
  return module


def outputs(
  module: types.ModuleType,
  config: config_lib.ModelConfig,
  params: dict[str, Any],
  buffers: dict[str, Any],
  tokens_BL: np.ndarray,
  mask_BL: np.ndarray,
) -> dict[str, np.ndarray]:
  """Every value of the kit that `module` forms, [B, L, ...] float64."""
  rows = []
  for tokens_L, mask_L in zip(tokens_BL, mask_BL > 0, strict=True):
    calls, keep = {}, _keep(module.__file__)
    sys.setprofile(lambda *event, c=calls, k=keep: k(c, *event))
    try:
      module.forward(config, params, buffers, tokens_L[mask_L])
    finally:
      sys.setprofile(None)
    calls = {name: iter(found) for name, found in calls.items()}
    row = dict(_named(config, calls))
    size = len(tokens_L) - int(mask_L.sum())
    pad = lambda v, n=size: np.pad(v, [(n, 0)] + [(0, 0)] * (v.ndim - 1))
    rows.append({name: pad(value) for name, value in row.items()})
  return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def _keep(file):
  """Notes (variables, result) of each function of `file` as it returns."""

  def keep(calls, frame, event, result):
    if event == 'return' and frame.f_code.co_filename == file:
      variables = dict(frame.f_locals)
      calls.setdefault(frame.f_code.co_name, []).append((variables, result))

  return keep


def _named(
  config: config_lib.ModelConfig, calls: dict[str, Iterator]
) -> Iterator[tuple[str, np.ndarray]]:
  """The values of one row, from the calls in their order."""
  for n in range(config.num_layers):
    at, (x, attn_out) = f'layers.{n}.', next(calls['_attention'])
    norm = next(calls['_rms'])
    if n == 0:
      yield 'embed', norm[0]['x_LD']
    yield at + 'attn.norm', norm[1]
    yield at + 'attn.q_proj', x['q_LF']
    yield at + 'attn.k_proj', x['k_LF']
    yield at + 'attn.conv_depthwise', next(calls['_convolve'])[0]['u_TF']
    yield at + 'attn.conv_grouped', x['mixed_LHC'].reshape(len(x['q_LF']), -1)
    yield at + 'attn.q_mean', x['mean_q_LHC']
    yield at + 'attn.k_mean', x['mean_k_LKC']
    for letter in 'qk':
      turn, rotated = next(calls['_rotate'])
      yield f'{at}attn.{letter}_norm', turn['x_LHC']
      yield f'{at}attn.{letter}_rope', rotated
    yield at + 'attn.v', x['v_LKC']
    yield at + 'attn.heads', x['out_LHC'].reshape(len(x['q_LF']), -1)
    for _ in range(config.num_heads):
      next(calls['_softmax'])
    yield at + 'attn.out', attn_out
    yield at + 'attn.merge', next(calls['_merge'])[1]
    yield at + 'moe.norm', next(calls['_rms'])[1]
    next(calls['_rms'])  # The router's own.
    state, probs = next(calls['_router'])[1]
    experts, y = next(calls['_experts'])
    choice = experts['choice_L']
    yield at + 'router.state', state
    yield at + 'router.logits', next(calls['_softmax'])[0]['x']
    yield at + 'router.probs', probs
    yield at + 'router.choice', choice
    weight = np.take_along_axis(experts['prob_LE'], choice[:, None], 1)
    yield at + 'router.weight', weight[:, 0]
    yield at + 'moe.out', y
    yield at + 'moe.merge', next(calls['_merge'])[1]
  yield 'final.norm', next(calls['_rms'])[1]
  yield 'logits', next(calls['forward'])[1].logits
