# SPDX-License-Identifier: Apache-2.0
"""The router microscope: where each layer sends the tokens of a text, and why.

Axis letters: B windows, L positions, N layers, E experts, X router classes (the
experts and, unless it is off, the skip class), T tokens that are not padding, R
router width.
"""

import functools
import json
import math
import os
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zaya_jax import config as config_lib
from zaya_jax.checkpoint.reading import finder
from zaya_jax.hub import folder as hub_folder
from zaya_jax.inference import activations, score
from zaya_jax.inference import load as load_lib
from zaya_jax.inference import model as model_lib
from zaya_jax.model import zaya
from zaya_jax.report import page, records, router_page
from zaya_jax.runtime import durable

_LIKED, _EXAMPLES = 8, 3  # Of each class.
# A class likes a token that it gets twice as often as the text has it, if that
# is not chance: four standard deviations, and five tokens.
_LIFT, _DEVIATIONS, _LEAST = 2.0, 4.0, 5
_FEW = 0.2  # Of an even share, below which an expert is nearly dead.
_BEFORE, _AFTER = 16, 8  # Tokens around an example.
_SEEN = {'\n': '\u21b5', '\t': '\u21e5', ' ': '\u2423'}


def main(config: config_lib.Config) -> None:
  """--report.router: writes router.html and router.json, and prints both paths.

  Raises:
    UsageError: if there is no model, no text or no place for the page.
    CheckpointError: if the run holds no complete checkpoint.
  """
  source = config.source or config.run_dir
  # A folder may have a comma in its name.
  one = source and (os.path.exists(source) or ',' not in source)
  if not one or not config.eval.text or config.serve:
    raise config_lib.UsageError(
      '--report.router looks into one checkpoint on one text and writes a '
      'page: --source=DIR --eval.text=FILE, without --serve.'
    )
  model = load_lib.load(source, config.restore)
  if model.tokenizer is None:
    raise config_lib.UsageError(
      f'--source={source} has no tokenizer; put a tokenizer.json there.'
    )
  home, run = None, None
  if not hub_folder.is_folder(source):
    home = pathlib.Path(finder.resolve(source)).parents[1]
    run = records.read(str(home))
  path = page.path(config.output) if config.output else _beside(home, source)
  text = score.read_text(config.eval.text)
  seq_len = run and records.number(run.section('data').get('seq_len'))
  found = {'source': source, 'text': config.eval.text} | inspect(
    model,
    text,
    tokens=config.report.tokens,
    seq_len=int(seq_len or config.data.seq_len),
  )
  if run:
    found['bias_trajectory'] = _trajectory(run, found)
  page.write(router_page.make(found), path)
  numbers = path.with_suffix('.json')
  durable.replace(numbers, json.dumps(found, indent=1).encode())
  print(f'{path}\n{numbers}')


def inspect(
  model: model_lib.Model, text: str, *, tokens: int = 8192, seq_len: int = 256
) -> dict[str, Any]:
  """Measures the router of every layer on a text.

  Args:
    model: of `models.load`, with a tokenizer.
    text: what it reads, in windows that do not see each other.
    tokens: of the text, at most.
    seq_len: tokens of a window.

  Returns:
    What docs/report.md describes: `tokens`, `num_experts` and `layers`.
  """
  ids_BL, mask_BL = _windows(model, text, tokens, seq_len)
  run = jax.jit(functools.partial(_measure, model.config))
  measured = jax.device_get(run(model.params, model.buffers, ids_BL, mask_BL))
  read = _Reader(model.tokenizer, ids_BL, mask_BL)
  return {
    'tokens': int(mask_BL.sum()),
    'num_experts': model.config.num_experts,
    'layers': [
      _layer(model.config, read, n, values) for n, values in enumerate(measured)
    ],
  }


def _windows(model, text, tokens, seq_len):
  """[B, L] ids and bool; the last window is padded on its left."""
  # A token has at most some dozens of letters: no need to encode a library.
  ids = model.tokenizer.encode(text[: 64 * tokens])
  ids = np.insert(ids, 0, model.tokenizer.bos_id)[:tokens]
  length = min(seq_len, len(ids))
  rows = -(-len(ids) // length)
  ids_BL = np.full((rows, length), model.tokenizer.pad_id, np.int32)
  mask_BL = np.zeros((rows, length), bool)
  for b in range(rows):
    part = ids[b * length : (b + 1) * length]
    ids_BL[b, length - len(part) :] = part
    mask_BL[b, length - len(part) :] = True
  return ids_BL, mask_BL


def _measure(config, params, buffers, ids_BL, mask_BL):
  """Of each layer what its router does; jit leaves out all the rest."""
  values = activations.forward(config, params, buffers, ids_BL, mask_BL)
  model = zaya.bind(config, params, buffers)
  state_BLR = jnp.zeros((*ids_BL.shape, config.d_router))
  found = []
  for n in range(config.num_layers):
    router = jax.tree.map(lambda leaf, n=n: leaf[n], model.layers.router)
    own = {k: values[f'layers.{n}.{k}'] for k in ('router.down', 'moe.norm')}
    probs_BLX = values[f'layers.{n}.router.probs']
    alone = router(own['moe.norm'], jnp.zeros_like(state_BLR))
    incoming_BLR = router.eda[...][None, None] * state_BLR
    found.append(
      {
        'choice_BL': values[f'layers.{n}.router.choice'],
        'weight_BL': values[f'layers.{n}.router.weight'],
        'entropy_BL': -jnp.sum(
          jax.scipy.special.xlogy(probs_BLX, probs_BLX), axis=-1
        ),
        'alone_BL': alone.choice,
        'own_BL': jnp.sum(jnp.square(own['router.down']), axis=-1),
        'incoming_BL': jnp.sum(jnp.square(incoming_BLR), axis=-1),
        'eda_R': router.eda[...],
        'bias_X': router.balance_bias[...],
      }
    )
    state_BLR = values[f'layers.{n}.router.state']
  return found


def _layer(config, read, n, values) -> dict[str, Any]:
  """The numbers of one layer, and what each of its classes likes."""
  mask_BL, experts = read.mask_BL, config.num_experts
  of = lambda name: values[name][mask_BL].astype(np.float64)
  choice_T = values['choice_BL'][mask_BL]
  count_X = np.bincount(choice_T, minlength=config.num_classes)
  routed = max(count_X[:experts].sum(), 1)
  share_E = count_X[:experts] / routed
  positive_E = share_E[share_E > 0]
  own, incoming = (
    math.sqrt(of(f'{name}_BL').mean()) for name in ('own', 'incoming')
  )
  changed = (choice_T != values['alone_BL'][mask_BL]).mean() if n else 0.0
  return {
    'layer': n,
    'load_entropy': (positive_E * -np.log(positive_E)).sum()
    / math.log(max(experts, 2)),
    'token_entropy': of('entropy_BL').mean() / math.log(config.num_classes)
    if config.num_classes > 1
    else 0.0,
    'chosen_probability': of('weight_BL').mean(),
    'max_violation': share_E.max() * experts - 1,
    'dead': np.flatnonzero(share_E == 0).tolist(),
    'nearly_dead': np.flatnonzero(
      (share_E > 0) & (share_E * experts < _FEW)
    ).tolist(),
    'skip': 1 - count_X[:experts].sum() / len(choice_T),
    'eda': {
      'mean': float(np.mean(values['eda_R'])) if n else 0.0,
      'incoming_share': incoming / max(own + incoming, 1e-30),
      'changed_choices': float(changed),
    },
    'bias': [round(float(x), 6) for x in values['bias_X']],
    'classes': [
      {
        'class': x if x < experts else 'skip',
        'tokens': int(count_X[x]),
        'share': count_X[x] / len(choice_T),
        'likes': read.liked(values['choice_BL'] == x),
        'examples': read.examples(
          values['choice_BL'] == x, values['weight_BL']
        ),
      }
      for x in range(config.num_classes)
    ],
  }


class _Reader:
  """What stands at the positions of the text."""

  def __init__(self, tokenizer, ids_BL: np.ndarray, mask_BL: np.ndarray):
    self._tokenizer, self._ids_BL, self.mask_BL = tokenizer, ids_BL, mask_BL
    size = int(ids_BL.max()) + 1
    self._all_V = np.bincount(ids_BL[mask_BL], minlength=size)

  def liked(self, where_BL: np.ndarray) -> list[dict[str, Any]]:
    """Tokens that are clearly more frequent here than in the text.

    Ordered by their share of the Kullback-Leibler divergence, which weighs how
    often they are with how much more often.
    """
    ids_T = self._ids_BL[where_BL & self.mask_BL]
    if not len(ids_T):
      return []
    here_V = np.bincount(ids_T, minlength=len(self._all_V))
    chance_V = self._all_V / self._all_V.sum() * len(ids_T)
    lift_V = here_V / np.maximum(chance_V, 1e-30)
    clear_V = (lift_V >= _LIFT) & (here_V >= _LEAST)
    clear_V &= here_V - chance_V >= _DEVIATIONS * np.sqrt(chance_V)
    gain_V = clear_V * here_V * np.log(np.maximum(lift_V, 1))
    return [
      {
        'id': int(v),
        'token': self._token(v),
        'tokens': int(here_V[v]),
        'lift': float(lift_V[v]),
      }
      for v in np.argsort(-gain_V, kind='stable')[:_LIKED]
      if clear_V[v]
    ]

  def examples(
    self, where_BL: np.ndarray, weight_BL: np.ndarray
  ) -> list[list[str]]:
    """[before, token, after] of the surest choices, each of another token."""
    where_BL = where_BL & self.mask_BL
    order = np.argsort(-np.where(where_BL, weight_BL, -1), axis=None)
    found, seen = [], set()
    for place in order[: min(int(where_BL.sum()), 1000)]:
      b, i = np.unravel_index(place, where_BL.shape)
      if (v := int(self._ids_BL[b, i])) in seen:
        continue
      seen.add(v)
      first = max(i - _BEFORE, int(np.argmax(self.mask_BL[b])))
      row = self._ids_BL[b]
      around = (row[first:i], row[i + 1 : i + 1 + _AFTER])
      before, after = (self._tokenizer.decode(part.tolist()) for part in around)
      found.append([before, self._token(v), after])
      if len(found) == _EXAMPLES:
        break
    return found

  def _token(self, v: int) -> str:
    """A token so that it can be seen."""
    text = self._tokenizer.decode([int(v)]) or f'<{v}>'
    return ''.join(_SEEN.get(letter, letter) for letter in text)


def _beside(home: pathlib.Path | None, source: str) -> pathlib.Path:
  """The page in the folder of a run; JSON goes beside it."""
  if home is None:
    raise config_lib.UsageError(
      f'--source={source} is a Hugging Face folder, which is only read; say '
      'where the page goes: --output=FILE.html.'
    )
  return home / 'router.html'


def _trajectory(run: records.Run, found: dict[str, Any]) -> dict[str, Any]:
  """The balancing bias over the steps, as experts.jsonl has it: [N][T][X]."""
  shape = (len(found['layers']), len(found['layers'][0]['bias']))
  steps, biases = [], []
  for row in run.experts:
    try:
      bias_NX = np.asarray(row.get('bias'), np.float64)
    except (TypeError, ValueError):
      continue
    if bias_NX.shape == shape and np.isfinite(bias_NX).all():
      steps.append(row['step'])
      biases.append(bias_NX)
  layers = np.stack(biases, axis=1).tolist() if biases else []
  return {'steps': steps, 'layers': layers}
