# SPDX-License-Identifier: Apache-2.0
"""Known mistakes of ports of ZAYA1, and the values that each would give.

Computed from what is expected one step earlier, and kept in the kit, so that a
submodule's wrong value says which mistake it is. All for the first row of the
batch, which has no padding. Axis letters: L positions, H query heads, K key
heads, C channels.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

# What is wrong, and the value that it gives; None: no value is known.
Trap = tuple[str, np.ndarray | None]

_erf = np.vectorize(math.erf, otypes=[np.float64])
_TANH_GELU = math.sqrt(2 / math.pi)


class View:
  """The kit, seen from one layer."""

  def __init__(
    self,
    layer: int,
    config: dict[str, Any],
    weights: dict[str, np.ndarray],
    expected: dict[str, np.ndarray],
    tokens_BL: np.ndarray,
  ):
    self.layer, self.config = layer, config
    self.tokens_L = tokens_BL[0]
    self._weights, self._expected = weights, expected

  def weight(self, name: str) -> np.ndarray:
    """The tensor of the model `name`, or of this layer."""
    inner = f'model.layers.{self.layer}.{name}'
    return self._weights[inner if inner in self._weights else f'model.{name}']

  def value(self, name: str, layer: int | None = None) -> np.ndarray:
    """What is expected of `name`, in this layer unless another is named."""
    layer = self.layer if layer is None else layer
    inner = f'layers.{layer}.{name}'
    return self._expected[inner if inner in self._expected else name][0]

  def heads(self, name: str) -> np.ndarray:
    """`value`, cut into heads: [L, heads, C]."""
    value = self.value(name)
    return value.reshape(len(value), -1, self.config['head_dim'])

  @property
  def stream(self) -> np.ndarray:
    """The residual stream before this layer, or behind the last."""
    if self.layer == 0:
      return self.value('embed')
    return self.value('moe.merge', self.layer - 1)


def of(name: str, view: View) -> Iterator[Trap]:
  """The mistakes that show first in the submodule `name` (without a layer)."""
  return _TRAPS[name](view)


def _embed(v):
  rows = v.weight('embed_tokens.weight')[v.tokens_L]
  scale, bias = (
    v.weight(f'input_hidden_states_{x}') for x in ('scale', 'bias')
  )
  yield 'x * s + b in place of (x + b) * s', rows * scale + bias
  yield 'the input scale and bias are missing', rows
  gemma = rows * rows.shape[1] ** 0.5
  yield (
    'a factor of sqrt(D) as in Gemma, which ZAYA lacks',
    ((gemma + bias) * scale),
  )


def _norm(weight: str, source: str) -> Callable[[View], Iterator[Trap]]:
  def traps(v):
    w = v.weight(weight)
    x = v.value(source) if source else v.stream
    for eps in (1e-5, 1e-6, 0.0):
      yield f'norm epsilon {eps:g} in place of rms_norm_eps', _rms(x, eps) * w
    right = _rms(x, v.config['rms_norm_eps'])
    yield '1 + w as in Gemma in place of w', right * (1 + w)
    centred = x - x.mean(-1, keepdims=True)
    yield (
      'LayerNorm in place of RMSNorm',
      (_rms(centred, v.config['rms_norm_eps']) * w),
    )

  return traps


def _projection(letter: str) -> Callable[[View], Iterator[Trap]]:
  def traps(v):
    w = v.weight(f'self_attn.qkv_proj.{letter}_proj.weight')
    pairs = w.reshape(-1, 2, v.config['head_dim'] // 2, w.shape[1])
    permuted = pairs.swapaxes(1, 2).reshape(w.shape)
    yield (
      'rows permuted for interleaved RoPE, as converters to GGUF do',
      (v.value('attn.norm') @ permuted.T),
    )

  return traps


def _depthwise(v):
  z, w, b = _conv_input(v), *_conv(v, 'depthwise')
  yield 'taps in reverse: tap 0 meets the older token', _taps(z, w[::-1]) + b
  yield 'the bias is missing', _taps(z, w)
  u = _taps(z, w) + b
  yield (
    'pad by 2 zeros once, before the first convolution, and run both without '
    'padding: L + 1 values come out, the first of them the bias',
    np.concatenate([np.zeros_like(u[:1]), u[1:]]),
  )


def _grouped(v):
  u, w, b = v.value('attn.conv_depthwise'), *_conv(v, 'grouped')
  zero = np.concatenate([np.zeros_like(u[:1]), u[1:]])
  yield (
    (
      'each convolution is padded on its own; pad by 2 zeros once, before '
      'the first, so that u[-1] is its bias'
    ),
    _grouped_taps(zero, w) + b,
  )
  yield 'taps in reverse', _grouped_taps(u, w[::-1]) + b
  yield (
    'input and output channels swapped',
    (_grouped_taps(u, w.swapaxes(2, 3)) + b),
  )
  yield (
    'an activation between the convolutions; there is none',
    (_grouped_taps(_silu(u), w) + b),
  )
  yield 'the bias is missing', _grouped_taps(u, w)
  first, first_bias = _conv(v, 'depthwise')
  u = _taps(_conv_input(v), first[::-1]) + first_bias
  yield 'taps of the depthwise convolution in reverse', _grouped_taps(u, w) + b


def _q_mean(v):
  q, k = v.heads('attn.q_proj'), v.heads('attn.k_proj')
  tiled = k[:, np.arange(q.shape[1]) % k.shape[1]]
  group = q.shape[1] // k.shape[1]
  yield 'query head i paired with key i % K, not i // (H / K)', (q + tiled) / 2
  yield 'the sum in place of the mean', q + k.repeat(group, 1)
  y_q, y_k = _convolved(v)
  yield 'taken behind the convolutions', (y_q + y_k.repeat(group, 1)) / 2


def _k_mean(v):
  q, k, mean = (v.heads(f'attn.{x}') for x in ('q_proj', 'k_proj', 'q_mean'))
  tiled = mean.reshape(len(q), -1, *k.shape[1:]).mean(1)
  yield 'mean over the query heads i % K, not i // (H / K)', tiled
  yield 'the keys alone', k
  yield 'the keys alone, halved', k / 2


def _q_norm(v):
  y, mean = _convolved(v)[0], v.value('attn.q_mean')
  yield 'the mean path is missing', _unit(y)
  yield 'not scaled by sqrt(C)', _unit(y + mean) / y.shape[-1] ** 0.5
  yield 'not normalized', y + mean
  yield (
    'temperature on the queries, not the keys',
    _unit(y + mean)
    * v.weight('self_attn.qk_norm.temp').repeat(y.shape[1] // 2)[:, None],
  )


def _k_norm(v):
  y, mean = _convolved(v)[1], v.value('attn.k_mean')
  temp = v.weight('self_attn.qk_norm.temp')[:, None]
  k = _unit(y + mean)
  yield 'key temperature exp(T) in place of T', k * np.exp(temp)
  yield 'the key temperature is missing', k
  yield 'divided by the key temperature', k / temp
  yield 'the mean path is missing', _unit(y) * temp
  yield 'not scaled by sqrt(C)', k * temp / y.shape[-1] ** 0.5


def _rope(letter: str) -> Callable[[View], Iterator[Trap]]:
  def traps(v):
    x = v.value(f'attn.{letter}_norm')
    width, t = x.shape[-1], np.arange(len(x))
    kind = v.config['layer_types'][v.layer]
    thetas = {
      k: p['rope_theta'] for k, p in v.config['rope_parameters'].items()
    }
    theta = thetas.pop(kind)
    (other,) = thetas.values()
    yield (
      'interleaved pairs (2i, 2i + 1) in place of halves (i, i + C / 4)',
      (_rotate(x, t, theta, width // 2, interleaved=True)),
    )
    yield (
      'the whole head is rotated, not its first half',
      (_rotate(x, t, theta, width)),
    )
    yield (
      f'the base of the other kind of layers ({kind} has {theta:g})',
      (_rotate(x, t, other, width // 2)),
    )
    yield 'rotated the other way', _rotate(x, -t, theta, width // 2)
    yield 'positions start at 1', _rotate(x, t + 1, theta, width // 2)
    yield 'not rotated', x

  return traps


def _values(v):
  h, heads = v.value('attn.norm'), v.value('attn.v').shape
  current, now = (
    h @ v.weight(f'self_attn.qkv_proj.v_proj_{x}.weight').T
    for x in ('current', 'delayed')
  )
  past = np.concatenate([np.zeros_like(now[:1]), now[:-1]])
  whole = lambda *parts: np.concatenate(parts, -1).reshape(heads)
  halves = (x.reshape(heads[0], heads[1], -1) for x in (current, past))
  yield 'the delayed half is not delayed', whole(current, now)
  yield (
    (
      'half of each head is delayed; it is whole heads: the first are current, '
      'the last delayed'
    ),
    np.concatenate([*halves], -1),
  )
  yield 'current and delayed heads swapped', whole(past, current)


def _heads(v):
  q, k, x = (v.value(f'attn.{y}') for y in ('q_rope', 'k_rope', 'v'))
  group, scale = q.shape[1] // k.shape[1], q.shape[2] ** -0.5
  sliding = v.config['layer_types'][v.layer] == 'hybrid_sliding'
  window = v.config['sliding_window'] if sliding else len(q)
  spread = lambda y: y.repeat(group, 1)
  tiled = lambda y: y[:, np.arange(q.shape[1]) % y.shape[1]]
  if sliding:
    yield (
      'the window counts earlier keys only',
      (_attend(q, spread(k), spread(x), scale, window + 1)),
    )
    yield 'no sliding window', _attend(q, spread(k), spread(x), scale, len(q))
  yield (
    'query head i reads key i % K, not i // (H / K)',
    (_attend(q, tiled(k), tiled(x), scale, window)),
  )
  yield (
    'scores are not divided by sqrt(C)',
    (_attend(q, spread(k), spread(x), 1.0, window)),
  )


def _out(v):
  w, heads = v.weight('self_attn.o_proj.weight'), v.heads('attn.heads')
  yield (
    'channels before heads: transpose to [L, H, C] first',
    (heads.swapaxes(1, 2).reshape(len(heads), -1) @ w.T),
  )


def _merge(name: str, branch: str, residual: str) -> Callable:
  def traps(v):
    names = ('hidden_states_scale', 'hidden_states_bias')
    s_h, b_h = (v.weight(f'{name}.{x}') for x in names)
    s_r, b_r = (v.weight(f'{name}.residual_{x}') for x in ('scale', 'bias'))
    o, x = v.value(branch), v.value(residual) if residual else v.stream
    yield 'x * s + b in place of (x + b) * s', o * s_h + b_h + x * s_r + b_r
    yield 'residual scales and biases are missing', o + x
    yield (
      'the scales of branch and residual swapped',
      ((o + b_r) * s_r + (x + b_h) * s_h),
    )
    yield 'the residual is not scaled', (o + b_h) * s_h + x

  return traps


def _down(v):
  w, b = (v.weight(f'mlp.gate.down_proj.{x}') for x in ('weight', 'bias'))
  yield 'the bias is missing', v.value('moe.norm') @ w.T
  yield (
    'it reads the residual stream before the norm',
    (v.value('attn.merge') @ w.T + b),
  )


def _state(v):
  own = v.value('router.down')
  if v.layer == 0:
    yield 'the first layer has nothing to add', None
    return
  g = v.weight('mlp.gate.router_states_scale')
  before = v.value('router.state', v.layer - 1)
  yield 'EDA is missing: the state of the layer before is not added', own
  yield 'EDA with one number; it is a vector', own + g[0] * before
  yield 'EDA with one number; it is a vector', own + g.mean() * before
  yield 'EDA without its factor', own + before
  alone = v.value('router.down', v.layer - 1)
  yield 'the state is handed on before mixing, not after', own + g * alone


def _logits(v):
  w = lambda x: v.weight(f'mlp.gate.router_mlp.{x}')
  right = v.config['rms_norm_eps']

  def mlp(x, act, eps=right):
    x = x if eps is None else _rms(x, eps) * w('norm.weight')
    for name in ('fc1', 'fc2'):
      x = act(x @ w(f'{name}.weight').T + w(f'{name}.bias'))
    return x @ w('out_proj.weight').T

  x = v.value('router.state')
  yield 'GELU by tanh; it is by erf', mlp(x, _tanh_gelu)
  for name, act in (('SiLU', _silu), ('ReLU', lambda y: np.maximum(y, 0))):
    yield f'{name} in place of GELU', mlp(x, act)
  yield 'the norm is missing', mlp(x, _gelu, None)
  for eps in (1e-5, 1e-6):
    yield f'norm epsilon {eps:g} in place of rms_norm_eps', mlp(x, _gelu, eps)
  yield 'EDA is missing', mlp(v.value('router.down'), _gelu)


def _probs(v):
  x = v.value('router.logits')
  experts = _softmax(x[:, :-1])
  yield 'softmax without the skip class', np.pad(experts, ((0, 0), (0, 1)))
  yield 'sigmoid in place of softmax', 1 / (1 + np.exp(-x))


def _choice(v):
  bias = v.weight('mlp.gate.balancing_biases')
  probs, logits = v.value('router.probs'), v.value('router.logits')
  yield 'the balancing bias is not added', probs.argmax(-1)
  yield (
    'the bias is added to logits, not probabilities',
    ((logits + bias).argmax(-1)),
  )
  yield (
    'the skip class is never chosen (from_pretrained of transformers 5.23 sets '
    'its bias to -1, whatever the file says)',
    (probs + bias)[:, :-1].argmax(-1),
  )


def _weight(v):
  probs, choice = v.value('router.probs'), v.value('router.choice')
  pick = lambda p: np.take_along_axis(p, choice[:, None], 1)[:, 0]
  bias = v.weight('mlp.gate.balancing_biases')
  yield 'the balancing bias is in the weight', pick(probs + bias)
  yield 'renormalized to 1', np.ones(len(probs))
  yield (
    'renormalized without the skip class',
    (pick(probs / probs[:, :-1].sum(-1, keepdims=True))),
  )


def _experts(v):
  h, probs = v.value('moe.norm'), v.value('router.probs')
  choice = v.value('router.choice')
  up_and_down = [v.weight(f'mlp.experts.{x}_proj') for x in ('gate_up', 'down')]
  p = np.take_along_axis(probs, choice[:, None], 1)
  skipped = (choice == len(up_and_down[0]))[:, None]
  halves = lambda x: np.split(x, 2)

  def run(x, cut=halves, act=_silu):
    out = np.zeros_like(x)
    for t, e in enumerate(choice):
      if not skipped[t]:
        gate, up = cut(up_and_down[0][e] @ x[t])
        out[t] = up_and_down[1][e] @ (act(gate) * up)
    return out

  yield (
    'skip passes p * h on; its output is zero',
    (np.where(skipped, h, run(h)) * p),
  )
  yield 'skip passes h on; its output is zero', np.where(skipped, h, run(h) * p)
  yield (
    'gate and up swapped: gate is the first rows',
    (run(h, lambda x: np.split(x, 2)[::-1]) * p),
  )
  yield (
    'gate and up rows interleaved; they are halves',
    (run(h, lambda x: (x[::2], x[1::2])) * p),
  )
  yield 'GELU in place of SiLU', run(h, act=_gelu) * p
  yield 'the weight multiplies the input, not the output', run(h * p)
  yield 'the weight is missing', run(h)


def _head(v):
  logits = v.value('final.norm') @ v.weight('embed_tokens.weight').T
  yield 'logits are capped as in Gemma', 30 * np.tanh(logits / 30)
  yield 'another head: it is tied to the embedding', None


def _decode(v):
  del v
  for lost in (
    'the last 2 samples of (q, k) before the convolutions',
    'the delayed value projection of the last token',
    'the keys after normalization, temperature and rotation',
  ):
    yield f'the cache must keep {lost}', None
  yield 'the position goes on from the last real token', None


_TRAPS = {
  'embed': _embed,
  'attn.norm': _norm('input_layernorm.weight', ''),
  'attn.q_proj': _projection('q'),
  'attn.k_proj': _projection('k'),
  'attn.conv_depthwise': _depthwise,
  'attn.conv_grouped': _grouped,
  'attn.q_mean': _q_mean,
  'attn.k_mean': _k_mean,
  'attn.q_norm': _q_norm,
  'attn.k_norm': _k_norm,
  'attn.q_rope': _rope('q'),
  'attn.k_rope': _rope('k'),
  'attn.v': _values,
  'attn.heads': _heads,
  'attn.out': _out,
  'attn.merge': _merge('post_attention_residual_scale', 'attn.out', ''),
  'moe.norm': _norm('post_attention_layernorm.weight', 'attn.merge'),
  'router.down': _down,
  'router.state': _state,
  'router.logits': _logits,
  'router.probs': _probs,
  'router.choice': _choice,
  'router.weight': _weight,
  'moe.out': _experts,
  'moe.merge': _merge('post_mlp_residual_scale', 'moe.out', 'attn.merge'),
  'final.norm': _norm('norm.weight', ''),
  'logits': _head,
  'decode.logits': _decode,
}


def _rms(x, eps):
  return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)


def _unit(x):
  return x / np.linalg.norm(x, axis=-1, keepdims=True) * x.shape[-1] ** 0.5


def _silu(x):
  return x / (1 + np.exp(-x))


def _gelu(x):
  return x * (1 + _erf(x / math.sqrt(2))) / 2


def _tanh_gelu(x):
  return x * (1 + np.tanh(_TANH_GELU * (x + 0.044715 * x**3))) / 2


def _softmax(x):
  e = np.exp(x - x.max(-1, keepdims=True))
  return e / e.sum(-1, keepdims=True)


def _conv_input(v):
  z = np.concatenate([v.value('attn.q_proj'), v.value('attn.k_proj')], -1)
  return np.pad(z, ((2, 0), (0, 0)))


def _conv(v, kind):
  """Taps first: [2, Z] or [2, groups, out, in]; and the bias."""
  name = f'self_attn.qkv_proj.conv_qk_{kind}'
  w, bias = v.weight(f'{name}.weight'), v.weight(f'{name}.bias')
  taps = w.transpose(2, 0, 1)
  if kind == 'depthwise':
    return taps[..., 0], bias
  return taps.reshape(2, -1, w.shape[1], w.shape[1]), bias


def _convolved(v):
  y = v.heads('attn.conv_grouped')
  return np.split(y, [v.config['num_attention_heads']], axis=1)


def _taps(z, w):
  return z[:-1] * w[0] + z[1:] * w[1]


def _grouped_taps(u, w):
  u = u.reshape(len(u), w.shape[1], -1)
  y = np.einsum('LGI,GOI->LGO', u[:-1], w[0])
  return (y + np.einsum('LGI,GOI->LGO', u[1:], w[1])).reshape(len(y), -1)


def _rotate(x, positions, theta, width, *, interleaved=False):
  angle = np.outer(positions, theta ** (-np.arange(0, width, 2) / width))
  cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
  cut = (
    (slice(0, width, 2), slice(1, width, 2))
    if interleaved
    else (slice(0, width // 2), slice(width // 2, width))
  )
  a, b, out = x[..., cut[0]], x[..., cut[1]], x.copy()
  out[..., cut[0]], out[..., cut[1]] = a * cos - b * sin, b * cos + a * sin
  return out


def _attend(q, k, v, scale, window):
  age = np.arange(len(q))[:, None] - np.arange(len(q))
  score = np.einsum('QHC,KHC->HQK', q, k) * scale
  score = np.where((age >= 0) & (age < window), score, -np.inf)
  return np.einsum('HQK,KHC->QHC', _softmax(score), v).reshape(len(q), -1)
