# SPDX-License-Identifier: Apache-2.0
"""ZAYA in the order and with the names of its first release, in float64 NumPy.

Sub-layers alternate, attention then experts. Each scales what comes in, the
branch of the sub-layer before it and the residual, adds both, norms and mixes;
sub-layer 0 has no residual yet, and one more pair of scales is in front of the
final norm. Widths are read from the tensors. It shares no code with the other
specification, nor with the reading of folders.
"""

import dataclasses
import math

import numpy as np

_erf = np.vectorize(math.erf, otypes=[np.float64])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """What no tensor tells.

  Attributes:
    rope_theta: base of the rotary embedding.
    rope_fraction: share of a head that is rotated.
    norm_eps: of every norm.
    windows: attention sub-layer -> earlier tokens that it sees besides its own.
    sliding_theta: base of the rotary embedding in those sub-layers.
    identity: the skip class passes p * h, as in training; else nothing.
  """

  rope_theta: float = 1e4
  rope_fraction: float = 0.5
  norm_eps: float = 1e-5
  windows: dict[int, int] = dataclasses.field(default_factory=dict)
  sliding_theta: float = 1e4
  identity: bool = False


def forward(
  settings: Settings, tensors: dict[str, np.ndarray], tokens: np.ndarray
) -> tuple[np.ndarray, float]:
  """Runs one sequence.

  Args:
    settings: what no tensor tells.
    tensors: the content of the safetensors, by their names.
    tokens: [L] int.

  Returns:
    (logits [L, V], how far the chosen class is ahead of the next, at least).
  """
  w = {name: np.asarray(value, np.float64) for name, value in tensors.items()}
  branch, residual = w['model.embed_tokens.weight'][tokens], None
  state, margin = 0.0, np.inf
  count = 2 * sum(name.endswith('.qkv.temp') for name in w)
  for i in range(count):
    layer = f'model.layers.{i}.'
    residual = _merge(w, layer, branch, residual)
    h = _norm(residual, w[layer + 'input_norm.weight'], settings.norm_eps)
    if i % 2 == 0:
      branch = _attention(settings, w, i, h)
    else:
      branch, state, nearest = _experts(settings, w, layer, h, state)
      margin = min(margin, nearest)
  x = _merge(w, 'model.', branch, residual)
  x = _norm(x, w['model.final_norm.weight'], settings.norm_eps)
  head = w.get('lm_head.weight', w['model.embed_tokens.weight'])
  return x @ head.T + w.get('lm_head.bias', 0.0), margin


def _merge(w, layer, branch, residual):
  name = layer + 'res_scale.'
  branch = branch + w[name + 'hidden_states_bias']
  branch = branch * w[name + 'hidden_states_scale']
  if residual is None:
    return branch
  residual = residual + w[name + 'residual_bias']
  return branch + residual * w[name + 'residual_scale']


def _attention(settings, w, i, h):
  """Compressed convolutional attention of sub-layer i; [L, D] to [L, D]."""
  name = f'model.layers.{i}.self_attn.'
  grouped = w[name + 'qkv.conv_qk.1.weight']
  dim, length = grouped.shape[1], len(h)
  kv_heads = len(w[name + 'qkv.temp'])
  q, k = (_linear(w, f'{name}qkv.linear_{x}', h) for x in 'qk')
  mixed = _convolutions(w, name + 'qkv.conv_qk.', np.hstack([q, k]))
  mixed_q = mixed[:, : q.shape[1]].reshape(length, -1, dim)
  mixed_k = mixed[:, q.shape[1] :].reshape(length, kv_heads, dim)
  q, k = q.reshape(length, -1, dim), k.reshape(length, kv_heads, dim)
  share = q.shape[1] // kv_heads
  mean = (q + np.repeat(k, share, axis=1)) / 2
  mean_k = mean.reshape(length, kv_heads, share, dim).mean(axis=2)
  q, k = _unit(mixed_q + mean), _unit(mixed_k + mean_k)
  k = k * w[name + 'qkv.temp'][:, None]
  before = np.vstack([np.zeros_like(h[:1]), h[:-1]])
  value = [
    _linear(w, name + 'qkv.val_proj1', h),
    _linear(w, name + 'qkv.val_proj2', before),
  ]
  value = np.repeat(np.hstack(value).reshape(k.shape), share, axis=1)
  window = settings.windows.get(i)
  theta = settings.rope_theta if window is None else settings.sliding_theta
  width = int(dim * settings.rope_fraction)
  q = _rotate(q, theta, width)
  k = np.repeat(_rotate(k, theta, width), share, axis=1)
  age = np.subtract.outer(np.arange(length), np.arange(length))
  seen = (age >= 0) & (age <= (length if window is None else window))
  scores = np.einsum('thc,shc->hts', q, k) / math.sqrt(dim)
  weights = _softmax(np.where(seen, scores, -np.inf))
  out = np.einsum('hts,shc->thc', weights, value).reshape(length, -1)
  return _linear(w, name + 'o_proj', out)


def _convolutions(w, name, z):
  """Depthwise, then grouped by head; zeros in front once, for both."""
  depthwise, grouped = w[name + '0.weight'][:, 0], w[name + '1.weight']
  length, width = len(z), grouped.shape[1]
  pad = depthwise.shape[1] + grouped.shape[2] - 2
  z = np.vstack([np.zeros((pad, z.shape[1])), z])
  u = np.array(
    [
      (z[t : t + depthwise.shape[1]] * depthwise.T).sum(axis=0)
      for t in range(length + grouped.shape[2] - 1)
    ]
  )
  u = u + w[name + '0.bias']
  out = np.empty((length, z.shape[1]))
  for head in range(z.shape[1] // width):
    part = slice(head * width, (head + 1) * width)
    for t in range(length):
      taps = u[t : t + grouped.shape[2], part]  # [taps, in]
      out[t, part] = np.einsum('oik,ki->o', grouped[part], taps)
  return out + w[name + '1.bias']


def _experts(settings, w, layer, h, state):
  """The experts' output [L, D], the router's state, the smallest margin."""
  name = layer + 'zaya_block.router.'
  own = _linear(w, name + 'down_proj', h)
  if name + 'router_states_scale' in w:
    own = own + state * w[name + 'router_states_scale']
  a = _norm(own, w[name + 'rmsnorm_eda.weight'], settings.norm_eps)
  for step in ('0', '2'):
    a = _linear(w, f'{name}router_mlp.{step}', a)
    a = a * (1 + _erf(a / math.sqrt(2))) / 2
  probs = _softmax(_linear(w, name + 'router_mlp.4', a))
  biased = probs + w[name + 'balancing_biases']
  ranked = np.sort(biased, axis=-1)
  out = np.zeros_like(h)
  for t, chosen in enumerate(biased.argmax(axis=-1)):
    expert = f'{layer}zaya_block.experts.local_experts.{chosen}.linear_fc'
    if expert + '1.weight' in w:
      gate, up = np.split(_linear(w, expert + '1', h[t]), 2)
      out[t] = _linear(w, expert + '2', gate / (1 + np.exp(-gate)) * up)
    elif settings.identity:
      out[t] = h[t]
    out[t] *= probs[t, chosen]
  return out, own, (ranked[:, -1] - ranked[:, -2]).min()


def _linear(w, name, x):
  return x @ w[name + '.weight'].T + w.get(name + '.bias', 0.0)


def _norm(x, weight, eps):
  return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def _unit(x):
  """Each head at length sqrt(channels)."""
  return x / np.linalg.norm(x, axis=-1, keepdims=True) * x.shape[-1] ** 0.5


def _rotate(x, theta, width):
  """Channel i < width / 2 turns with channel i + width / 2."""
  turn = np.arange(width // 2)
  angle = np.arange(len(x))[:, None] * theta ** (-2 * turn / max(width, 1))
  pair = x[..., turn] + 1j * x[..., turn + width // 2]
  pair = pair * np.exp(1j * angle)[:, None]
  return np.concatenate([pair.real, pair.imag, x[..., width:]], axis=-1)


def _softmax(x):
  e = np.exp(x - x.max(axis=-1, keepdims=True))
  return e / e.sum(axis=-1, keepdims=True)
