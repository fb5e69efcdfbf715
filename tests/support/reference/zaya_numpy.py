# SPDX-License-Identifier: Apache-2.0
"""ZAYA in float64 NumPy: the specification, one sequence at a time.

Written from the equations, apart from the JAX model, whose parameter tree it
takes. Loops over layers, heads and tokens are plain on purpose.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from zaya_jax import config as config_lib

_erf = np.vectorize(math.erf, otypes=[np.float64])


class Output(NamedTuple):
  """What one sequence gives."""

  logits: np.ndarray  # [L, V]
  choice: np.ndarray  # [N, L] int: the class of each token in each layer.
  margin: np.ndarray  # [N, L]: how far the chosen class is ahead of the next.


def forward(
  config: config_lib.ModelConfig,
  params: dict[str, Any],
  buffers: dict[str, Any],
  tokens: np.ndarray,
  mask: np.ndarray | None = None,
) -> Output:
  """Runs one sequence.

  Args:
    config: the network.
    params: tree of `zaya.init`.
    buffers: tree of `zaya.init`.
    tokens: [L] int.
    mask: [L], 1 for a token and 0 for padding; None: all tokens.
  """
  real = np.ones(len(tokens)) if mask is None else np.asarray(mask, np.float64)
  p = _float64(params)
  bias_NE = _float64(buffers)['layers']['router']['balance_bias']
  x_LD = (p['embed'][tokens] + p['input_bias']) * p['input_scale']
  state_LR, choices, margins = 0.0, [], []
  for n in range(config.num_layers):
    w = _layer(p['layers'], n)
    h_LD = _rms(x_LD, w['attn_norm'], config.norm_eps)
    o_LD = _attention(config, n, w['attn'], h_LD, real)
    x_LD = _merge(w['attn_merge'], o_LD, x_LD)
    h_LD = _rms(x_LD, w['moe_norm'], config.norm_eps)
    state_LR, prob_LE = _router(config, w['router'], h_LD, state_LR)
    biased_LE = prob_LE + bias_NE[n]
    choice_L = biased_LE.argmax(-1)
    o_LD = _experts(config, w['experts'], h_LD, prob_LE, choice_L)
    x_LD = _merge(w['moe_merge'], o_LD, x_LD)
    ranked_LE = np.sort(biased_LE, -1)
    choices.append(choice_L)
    margins.append(
      ranked_LE[:, -1] - ranked_LE[:, -2]
      if biased_LE.shape[1] > 1
      else np.full(len(tokens), np.inf)
    )
  h_LD = _rms(x_LD, p['final_norm'], config.norm_eps)
  head_VD = p['embed'] if config.tie_embeddings else p['head']
  logits_LV = h_LD @ head_VD.T + p.get('head_bias', 0.0)
  return Output(logits_LV, np.stack(choices), np.stack(margins))


def _attention(config, n, w, h_LD, real_L):
  H, K, C, L = config.num_heads, config.num_kv_heads, config.head_dim, len(h_LD)
  h_LD = h_LD * real_L[:, None]
  q_LF = h_LD @ w['q'] + w.get('q_bias', 0.0)
  k_LF = h_LD @ w['k'] + w.get('k_bias', 0.0)
  q_LHC, k_LKC = q_LF.reshape(L, H, C), k_LF.reshape(L, K, C)
  group = [head * K // H for head in range(H)]  # Key head of each query head.
  before_LD = h_LD  # Of grouped-query attention all is of the token itself.
  if config.attention == 'cca':
    mixed_LHC = _convolve(config, w, np.concatenate([q_LF, k_LF], -1))
    mean_q_LHC = (q_LHC + k_LKC[:, group]) / 2
    mean_k_LKC = mean_q_LHC.reshape(L, K, H // K, C).mean(2)
    q_LHC = _unit(mixed_LHC[:, :H] + mean_q_LHC)
    k_LKC = _unit(mixed_LHC[:, H:] + mean_k_LKC)
    before_LD = np.concatenate([np.zeros_like(h_LD[:1]), h_LD[:-1]])
  else:
    q_LHC, k_LKC = _unit(q_LHC), _unit(k_LKC)
  k_LKC = k_LKC * w['temperature'][:, None]
  current = h_LD @ w['v_current'] + w.get('v_current_bias', 0.0)
  delayed = before_LD @ w['v_delayed'] + w.get('v_delayed_bias', 0.0)
  v_LKC = np.concatenate([current, delayed], -1).reshape(L, K, C)

  slides = n in config.sliding_layers
  theta = config.sliding_rope_theta if slides else config.rope_theta
  q_LHC = _rotate(q_LHC, theta, config.d_rope)
  k_LKC = _rotate(k_LKC, theta, config.d_rope)
  age_LL = np.arange(L)[:, None] - np.arange(L)
  seen_LL = (age_LL >= 0) & (real_L[None] > 0)
  if slides:
    seen_LL &= age_LL < config.sliding_window
  seen_LL |= np.eye(L, dtype=bool)  # Padding sees itself; nobody reads it.
  out_LHC = np.empty((L, H, C))
  for head in range(H):
    score_LL = q_LHC[:, head] @ k_LKC[:, group[head]].T / math.sqrt(C)
    weight_LL = _softmax(np.where(seen_LL, score_LL, -np.inf))
    out_LHC[:, head] = weight_LL @ v_LKC[:, group[head]]
  return out_LHC.reshape(L, H * C) @ w['out'] + w.get('out_bias', 0.0)


def _convolve(config, w, z_LF):
  """Pads once on the left; both convolutions then only shorten."""
  pad = config.conv_depthwise - 1 + config.conv_grouped - 1
  z_TF = np.concatenate([np.zeros((pad, z_LF.shape[1])), z_LF])
  T = len(z_TF) - (config.conv_depthwise - 1)
  u_TF = w['conv_depthwise_bias'] + sum(
    z_TF[i : i + T] * tap_F for i, tap_F in enumerate(w['conv_depthwise'])
  )
  u_TGC = u_TF.reshape(T, -1, config.head_dim)
  L = len(z_LF)
  y_LGC = sum(
    np.einsum('LGI,GIO->LGO', u_TGC[i : i + L], tap_GIO)
    for i, tap_GIO in enumerate(w['conv_grouped'])
  )
  return y_LGC + w['conv_grouped_bias'].reshape(-1, config.head_dim)


def _unit(x_LHC):
  norm = np.linalg.norm(x_LHC, axis=-1, keepdims=True)
  eps = np.finfo(np.float32).eps
  return x_LHC * math.sqrt(x_LHC.shape[-1]) / np.maximum(norm, eps)


def _rotate(x_LHC, theta, d_rope):
  """Rotates channel i with channel i + d_rope / 2, for i < d_rope / 2."""
  if not d_rope:
    return x_LHC
  angle_LI = np.outer(
    np.arange(len(x_LHC)), theta ** (-np.arange(0, d_rope, 2) / d_rope)
  )[:, None]
  a, b, rest = np.split(x_LHC, [d_rope // 2, d_rope], axis=-1)
  cos, sin = np.cos(angle_LI), np.sin(angle_LI)
  return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1)


def _merge(w, branch_LD, x_LD):
  branch_LD = (branch_LD + w['branch_bias']) * w['branch_scale']
  return branch_LD + (x_LD + w['residual_bias']) * w['residual_scale']


def _router(config, w, h_LD, state_LR):
  """The state that the next layer mixes in, and the probabilities."""
  if config.router == 'linear':
    return state_LR, _softmax(h_LD @ w['out'])
  state_LR = h_LD @ w['down'] + w['down_bias'] + w['eda'] * state_LR
  a_LR = _rms(state_LR, w['norm'], config.norm_eps)
  a_LR = _gelu(a_LR @ w['fc1'] + w['fc1_bias'])
  a_LR = _gelu(a_LR @ w['fc2'] + w['fc2_bias'])
  return state_LR, _softmax(a_LR @ w['out'])


def _experts(config, w, h_LD, prob_LE, choice_L):
  out_LD = np.zeros_like(h_LD)
  for t, e in enumerate(choice_L):
    if e == config.num_experts:
      value_D = h_LD[t] if config.skip == 'identity' else 0.0
    else:
      gate_F, up_F = np.split(h_LD[t] @ w['gate_up'][e], 2)
      value_D = (gate_F / (1 + np.exp(-gate_F)) * up_F) @ w['down'][e]
    out_LD[t] = prob_LE[t, e] * value_D
  return out_LD


def _rms(x_LD, scale_D, eps):
  return x_LD / np.sqrt((x_LD**2).mean(-1, keepdims=True) + eps) * scale_D


def _gelu(x):
  return x * (1 + _erf(x / math.sqrt(2))) / 2


def _softmax(x):
  e = np.exp(x - x.max(-1, keepdims=True))
  return e / e.sum(-1, keepdims=True)


def _float64(tree):
  if isinstance(tree, dict):
    return {name: _float64(branch) for name, branch in tree.items()}
  return np.asarray(tree, np.float64)


def _layer(tree, n):
  if isinstance(tree, dict):
    return {name: _layer(branch, n) for name, branch in tree.items()}
  return tree[n]
