# SPDX-License-Identifier: Apache-2.0
"""Writes the conformance kit: a tiny transformers model, step by step.

    make parity ARGS=--version   # Once: makes the environment with PyTorch.
    .venv-parity/bin/python -m tests.golden.make_conformance

Every value is taken out of `transformers.ZayaForCausalLM` in float32 while it
runs, by hooks; nothing of ours computes any. The kit lies in the package, where
`--mode=conform` finds it.
"""

import contextlib
import inspect
import json
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import safetensors.numpy
import torch
import transformers
from transformers.models.zaya import modeling_zaya

from tests.golden import conformance_names as names
from tests.golden import conformance_traps as traps
from tests.parity import cases, peer

KIT = pathlib.Path(__file__).parents[2] / 'zaya_jax' / 'convert' / 'kit'
PROMPT = 8  # Tokens that decoding is given at once.
CASE = cases.Case(
  name='conformance',
  seed=0,
  keys={
    'vocab_size': 64,
    'hidden_size': 48,
    'num_hidden_layers': 3,
    'num_attention_heads': 4,
    'num_key_value_heads': 2,
    'head_dim': 8,
    'num_experts': 4,
    'moe_intermediate_size': 24,
    'router_hidden_size': 20,
    'layer_types': ['hybrid', 'hybrid_sliding', 'hybrid'],
    'sliding_window': 4,
    'rope_parameters': cases.rope(1e4, 100.0),
    # Far above 1e-5: a program that does not read it is noticed.
    'rms_norm_eps': 1e-2,
  },
)
# The chosen class is ahead of the next by this much, for every token: bfloat16
# decides no choice. The seed is the first that gives it.
MARGIN = 0.06

Taps = dict[str, torch.Tensor]


def main() -> None:
  """Finds the seed and writes the kit anew."""
  tokens, mask = _batch()
  case, model, taps = _find(tokens, mask)
  expected = _not_compared(taps, mask)
  expected['decode.logits'] = decode(model, tokens, mask)
  order = names.order(case.hf_config['num_hidden_layers'])
  entries = names.manifest({name: expected[name] for name in order})
  wrong = _add_traps(entries, model, expected, tokens)
  shutil.rmtree(KIT, ignore_errors=True)
  KIT.mkdir()
  peer.save(model, str(KIT / 'model'))
  inputs = {'tokens': tokens, 'mask': mask, 'positions': _positions(mask)}
  safetensors.numpy.save_file(inputs, KIT / 'inputs.safetensors')
  safetensors.numpy.save_file(expected, KIT / 'expected.safetensors')
  safetensors.numpy.save_file(wrong, KIT / 'traps.safetensors')
  about = {
    'made_with': f'transformers {transformers.__version__}',
    'seed': case.seed,
    'prompt': PROMPT,
    'tensors': entries,
  }
  (KIT / 'manifest.json').write_text(json.dumps(about, indent=1) + '\n')
  (KIT / 'README.md').write_text(names.readme(about))
  size = sum(f.stat().st_size for f in KIT.rglob('*') if f.is_file())
  print(f'seed {case.seed}, {len(entries)} tensors, {size:,} bytes')
  _print_bfloat16(case, tokens, mask, expected)


def _batch() -> tuple[np.ndarray, np.ndarray]:
  """Tokens and mask, [2, 12] int32: the second row is padded on the left."""
  mask = (np.arange(12) >= np.array([[0], [3]])).astype(np.int32)
  rng = np.random.default_rng(0)
  tokens = rng.integers(2, CASE.hf_config['vocab_size'], mask.shape)
  return np.where(mask, tokens, 0).astype(np.int32), mask


def _positions(mask):
  return np.maximum(np.cumsum(mask, axis=1) - 1, 0).astype(np.int32)


def _find(tokens, mask):
  """The first seed whose routing is clear and shows every rule of it."""
  for seed in range(5_000):
    case = cases.Case(name=CASE.name, seed=seed, keys=CASE.keys)
    model = peer.build(case)
    taps = forward(model, tokens, mask)
    good, classes = True, set()
    for n, layer in enumerate(model.model.layers):
      probs, logits, chosen = (
        taps[f'layers.{n}.router.{name}'].numpy()
        for name in ('probs', 'logits', 'choice')
      )
      bias = layer.mlp.gate.balancing_biases.numpy()
      ranked = np.sort((probs + bias)[mask > 0])
      classes |= set(chosen[mask > 0])
      good &= np.min(ranked[:, -1] - ranked[:, -2]) > MARGIN
      good &= bias.size - 1 in chosen[mask > 0]
      if n == 0:  # Mistakes show already in the first row.
        good &= bias.size - 1 in chosen[0]
        for other in (probs, logits + bias):
          good &= (other[0].argmax(-1) != chosen[0]).any()
    if good and len(classes) == bias.size:
      return case, model, taps
  raise RuntimeError('No seed is clear: lower MARGIN.')


def forward(
  model: transformers.ZayaForCausalLM, tokens: np.ndarray, mask: np.ndarray
) -> Taps:
  """Runs the batch without a cache; the value of every name but decode's."""
  taps: Taps = {}
  with contextlib.ExitStack() as stack:
    _hook(model, taps, stack)
    stack.enter_context(torch.no_grad())
    _call(model, tokens, mask)
  return taps


def _call(model, tokens, mask, new=None, **more):
  """One call, with positions that do not count padding; of the `new` last."""
  new = tokens.shape[1] if new is None else new
  return model(
    torch.tensor(tokens[:, -new:]).long(),
    attention_mask=torch.tensor(mask).long(),
    position_ids=torch.tensor(_positions(mask)[:, -new:]).long(),
    **more,
  )


def _hook(model, taps: Taps, stack: contextlib.ExitStack) -> None:
  """Makes every module of `model` leave its value in `taps`."""

  def keep(module, name: str, value: Callable[[Any, Any], Any]):
    hook = lambda _, given, out: taps.update({name: value(given, out)})
    handle = module.register_forward_hook(hook)
    stack.callback(handle.remove)

  out = lambda _, y: y
  columns = lambda _, y: y.transpose(1, 2)
  item = lambda i: lambda _, y: y[i]
  for n, layer in enumerate(model.model.layers):
    at, attn, gate = f'layers.{n}.', layer.self_attn, layer.mlp.gate
    cca = attn.qkv_proj
    keep(layer.input_layernorm, at + 'attn.norm', out)
    keep(cca.q_proj, at + 'attn.q_proj', out)
    keep(cca.k_proj, at + 'attn.k_proj', out)
    keep(cca.conv_qk_depthwise, at + 'attn.conv_depthwise', columns)
    keep(cca.conv_qk_grouped, at + 'attn.conv_grouped', columns)
    keep(attn.qk_norm, at + 'attn.q_norm', item(0))
    keep(attn.qk_norm, at + 'attn.k_norm', item(1))
    keep(cca, at + 'attn.v', item(2))
    keep(attn.o_proj, at + 'attn.heads', lambda given, _: given[0])
    keep(attn.o_proj, at + 'attn.out', out)
    keep(layer.post_attention_residual_scale, at + 'attn.merge', out)
    keep(layer.post_attention_layernorm, at + 'moe.norm', out)
    keep(gate.down_proj, at + 'router.down', out)
    keep(gate.router_mlp, at + 'router.logits', out)
    keep(gate, at + 'router.state', item(3))
    shape = lambda _, y: y.reshape(taps['embed'].shape)
    keep(layer.mlp.experts, at + 'moe.out', shape)
    keep(layer.post_mlp_residual_scale, at + 'moe.merge', out)
  first = model.model.layers[0].register_forward_pre_hook(
    lambda _, given: taps.update({'embed': given[0]})
  )
  stack.callback(first.remove)
  keep(model.model.norm, 'final.norm', out)
  keep(model.lm_head, 'logits', out)
  stack.enter_context(_Functions(taps))
  stack.enter_context(_rotations(taps))


class _Functions(torch.overrides.TorchFunctionMode):
  """Keeps what is computed by functions, not by modules."""

  def __init__(self, taps: Taps):
    super().__init__()
    self._taps = taps
    self._count = {}

  def __torch_function__(self, func, types, args=(), kwargs=None):
    out = func(*args, **(kwargs or {}))
    if func is torch.softmax:
      self._keep('router.probs', out)
    elif func is torch.topk:
      self._keep('router.choice', out[1][..., 0].to(torch.int32))
    elif func is torch.gather:
      self._keep('router.weight', out[..., 0])
    elif func is torch.Tensor.mean and (kwargs or {}).get('dim') == -2:
      batch, length, *_, width = args[0].shape
      self._keep('attn.q_mean', args[0].reshape(batch, length, -1, width))
      self._keep('attn.k_mean', out)
    return out

  def _keep(self, name, value):
    n = self._count[name] = self._count.get(name, -1) + 1
    self._taps[f'layers.{n}.{name}'] = value


@contextlib.contextmanager
def _rotations(taps: Taps) -> Iterator[None]:
  """Keeps the rotated queries and keys, one call for each layer."""
  rotate = modeling_zaya.apply_rotary_pos_emb
  layers = iter(range(100))

  def kept(*args, **kwargs):
    at, both = f'layers.{next(layers)}.attn.', rotate(*args, **kwargs)
    for name, value in zip(('q_rope', 'k_rope'), both, strict=True):
      taps[at + name] = value.transpose(1, 2)
    return both

  modeling_zaya.apply_rotary_pos_emb = kept
  try:
    yield
  finally:
    modeling_zaya.apply_rotary_pos_emb = rotate


def _not_compared(taps: Taps, mask: np.ndarray) -> dict[str, np.ndarray]:
  """Arrays with NaN, or -1 in integers, wherever a port may differ."""
  arrays = {}
  for name, value in taps.items():
    array = np.ascontiguousarray(value.detach().numpy()).copy()
    real = mask.astype(bool)
    if array.shape[1] == mask.shape[1] + 1:  # One more, before the first token.
      real = np.concatenate([real[:, :1], real], axis=1)
    array[~real] = -1 if array.dtype == np.int32 else np.nan
    if name.endswith('router.weight'):  # The skip class has nothing to weigh.
      choice = taps[name.replace('weight', 'choice')].numpy()
      array[choice == CASE.hf_config['num_experts']] = np.nan
    arrays[name] = array
  return arrays


def decode(model, tokens, mask) -> np.ndarray:
  """[B, L - PROMPT, V]: the prompt at once, then token by token, cached."""
  logits = []
  # Since transformers 5.24; the other name warns there.
  known = inspect.signature(model.forward).parameters
  name = 'cache' if 'cache' in known else 'past_key_values'
  with torch.no_grad():
    cache = transformers.DynamicCache(config=model.config)
    for end in range(PROMPT, tokens.shape[1] + 1):
      out = _call(
        model,
        tokens[:, :end],
        mask[:, :end],
        new=PROMPT if end == PROMPT else 1,
        use_cache=True,
        **{name: cache},
      )
      logits.append(out.logits[:, -1].numpy())
  return np.ascontiguousarray(np.stack(logits[1:], axis=1))


def _add_traps(entries, model, expected, tokens) -> dict[str, np.ndarray]:
  """Writes the known mistakes into `entries`; their values, by name and index.

  Those of layers 0 and 1: a mistake of all layers, of sliding ones or of those
  that have one before shows there first.
  """
  config = model.config.to_dict()
  values, shown = {}, set()
  wide = lambda arrays: {
    name: x if x.dtype == np.int32 else x.astype(np.float64)
    for name, x in arrays.items()
  }
  weights = wide({k: v.numpy() for k, v in model.state_dict().items()})
  for entry in entries:
    name, layer = entry['name'], 0
    if name.startswith('layers.'):
      _, number, name = name.split('.', 2)
      layer = int(number)
    elif name in ('final.norm', 'logits'):
      layer = config['num_hidden_layers']
    view = traps.View(layer, config, weights, wide(expected), tokens)
    found = list(traps.of(name, view))
    entry['traps'] = [mistake for mistake, _ in found]
    want = expected[entry['name']][0]
    for i, (mistake, value) in enumerate(found):
      # From layer 2 on, only what shows in no layer before.
      if value is None or (layer == 2 and (name, mistake) in shown):
        continue
      value = value.reshape(want.shape).astype(want.dtype)
      if np.nanmax(np.abs(value - want)) > 1e-4:
        shown.add((name, mistake))
        values[f'{entry["name"]}/{i}'] = np.ascontiguousarray(value)
  return values


def _print_bfloat16(case, tokens, mask, expected) -> None:
  """How far transformers in bfloat16 is off: what the wide tolerance is for."""
  model = peer.build(case)
  bias = [layer.mlp.gate.balancing_biases for layer in model.model.layers]
  model = model.to(torch.bfloat16)
  for layer, kept in zip(model.model.layers, bias, strict=True):
    layer.mlp.gate.balancing_biases = kept
  for name, value in forward(model, tokens, mask).items():
    want = expected[name]
    counted = want >= 0 if want.dtype == np.int32 else ~np.isnan(want)
    off = np.abs(value.float().numpy() - want)[counted].max()
    print(f'{name:32} {off / max(np.ptp(want[counted]), 1e-30):.1e}')


if __name__ == '__main__':
  main()
