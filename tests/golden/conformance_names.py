# SPDX-License-Identifier: Apache-2.0
"""What the conformance kit names, in the order of the forward pass."""

from typing import Any

import numpy as np

# Shares of the spread of the expected values. Two float32 programs differ by
# 1e-6 here; transformers in bfloat16 from itself in float32 by up to 5e-2, and
# by 2e-1 in what the softmax of the router makes of large logits.
FLOAT32, BFLOAT16, BFLOAT16_PROBS = 2e-5, 8e-2, 3e-1

FIRST = {'embed': '(E[token] + b_in) * s_in, in float32'}
LAYER = {
  'attn.norm': 'h = RMSNorm(x) * w, x the residual stream',
  'attn.q_proj': 'q = Wq h; h is 0 at padding',
  'attn.k_proj': 'k = Wk h',
  'attn.conv_depthwise': 'u[t] = w[0] z[t-1] + w[1] z[t] + b of z = (q, k), '
  'from t = -1 on: u[-1] = b, not 0',
  'attn.conv_grouped': 'y[t] = W[0] u[t-1] + W[1] u[t] + b, one group a head',
  'attn.q_mean': 'm_i = (q_i + k_j) / 2, j = i // (H / K), of q and k before '
  'the convolutions',
  'attn.k_mean': 'mean of m_i over the query heads i of key head j',
  'attn.q_norm': 'Q = (y_q + m_q) * sqrt(C) / |y_q + m_q|, for each head',
  'attn.k_norm': 'K likewise, times the temperature T_j (linear)',
  'attn.q_rope': 'Q rotated: channel i of the first half of the head with '
  'channel i + C / 4; position 0 is the first real token',
  'attn.k_rope': 'K rotated likewise',
  'attn.v': '(Wv1 h[t], Wv2 h[t-1]), 0 before the first token, cut into K '
  'heads: the first heads are current, the last delayed',
  'attn.heads': 'softmax(Q K^T / sqrt(C)) V; a sliding layer sees the last 4 '
  'keys, its own included',
  'attn.out': 'Wo of the heads',
  'attn.merge': 'x = (o + b_h) * s_h + (x + b_r) * s_r, in float32',
  'moe.norm': 'h = RMSNorm(x) * w',
  'router.down': 'r = Wd h + bd',
  'router.state': 'r + g * (state of the layer before), g a vector (EDA); '
  'layer 0: r',
  'router.logits': 'W3 gelu(W2 gelu(W1 RMSNorm(state) + b1) + b2), erf GELU',
  'router.probs': 'softmax over E experts and the skip class',
  'router.choice': 'argmax(probs + balancing bias); E: skip',
  'router.weight': 'probs[choice], without the bias; not compared at skip',
  'moe.out': 'weight * Wdown(silu(gate h) * (up h)), gate the first rows; 0 '
  'for the skip class',
  'moe.merge': 'x = (y + b_h) * s_h + (x + b_r) * s_r, in float32',
}
LAST = {
  'final.norm': 'RMSNorm(x) * w',
  'logits': 'E^T of final.norm: the head is tied to the embedding',
  'decode.logits': 'logits of tokens 8 to 11, given one by one through the '
  'cache after the first 8 at once',
}


def order(num_layers: int) -> list[str]:
  """Every name, first to last."""
  layers = [f'layers.{n}.{name}' for n in range(num_layers) for name in LAYER]
  return [*FIRST, *layers, *LAST]


def manifest(expected: dict[str, np.ndarray]) -> list[dict[str, Any]]:
  """One entry for each name: shape, type, meaning and tolerances."""
  entries = []
  for name, value in expected.items():
    last = name.split('.', 2)[-1] if name.startswith('layers.') else name
    probs = last in ('router.probs', 'router.weight')
    tolerance = [FLOAT32, BFLOAT16_PROBS if probs else BFLOAT16]
    if value.dtype == np.int32:
      tolerance = [0, 0]
    entries.append(
      {
        'name': name,
        'shape': list(value.shape),
        'dtype': str(value.dtype),
        'meaning': (FIRST | LAYER | LAST)[last],
        'tolerance': dict(zip(('float32', 'bfloat16'), tolerance, strict=True)),
      }
    )
  return entries


def table(entries: list[dict[str, Any]]) -> str:
  """The names as a Markdown table, layer 0 for all layers."""
  lines = ['| name | shape | what |', '| --- | --- | --- |']
  for entry in entries:
    if 'layers.' in entry['name'] and 'layers.0.' not in entry['name']:
      continue
    name = entry['name'].replace('layers.0.', 'layers.N.')
    what = entry['meaning'].replace('|', r'\|')
    lines.append(f'| `{name}` | {entry["shape"]} | {what} |')
  return '\n'.join(lines)


def readme(about: dict[str, Any]) -> str:
  """README.md of the kit."""
  return f"""# ZAYA1 conformance kit

What every submodule of a tiny random ZAYA1 must give, from {about['made_with']}
in float32. `python -m zaya_jax.main --mode=conform --source=FILE` compares a
port with it and names the first submodule that differs.

| file | what |
| --- | --- |
| `model/` | the model: `config.json` and `model.safetensors`, native layout |
| `inputs.safetensors` | `tokens`, `mask`, `positions`: [2, 12] int32 |
| `expected.safetensors` | the values below |
| `traps.safetensors` | what known mistakes give for the first row |
| `manifest.json` | name, shape, type, meaning, tolerance, traps, in order |

The second row of the batch is padded on the left by 3 (mask 0). Nothing is
compared where `expected.safetensors` has NaN, or -1 in integers: at padding.
transformers 5.23 itself fails here at `router.choice` unless
`balancing_biases` are copied from `model.safetensors` behind `from_pretrained`,
which sets those of the skip class to -1.
Heads: H = 4 of queries, K = 2 of keys, C = 8 channels; 4 experts and the skip
class; 3 layers, of which layer 1 slides. The difference is the largest of all
elements, as a share of the spread (largest minus smallest expected value). It
may be {FLOAT32:g}; from the first bfloat16 or float16 tensor on {BFLOAT16:g},
and {BFLOAT16_PROBS:g} of the router's probabilities.

{table(about['tensors'])}
"""
