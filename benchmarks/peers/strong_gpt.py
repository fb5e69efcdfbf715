# SPDX-License-Identifier: Apache-2.0
"""A strong dense GPT in PyTorch, as public speedruns have made it.

    python -m benchmarks.peers.strong_gpt '{"layers": 8, "width": 512, ...}'

What those have found, in the simplest form: Muon (Newton-Schulz in bfloat16,
Nesterov momentum) for matrices, AdamW for embeddings, head and scalars; RMSNorm
without gain, of queries and keys too; rotary positions; squared ReLU; output
projections and head that start at zero; capped logits; embeddings of tokens
that values are mixed with in the first and last layers; skips from the first
half of the layers to the second, and from the embedding to each; a trapezoid of
the rate. Rates are those of github.com/KellerJordan/modded-nanogpt times the
one that is asked for, over its 0.05 of Muon. Prints one JSON line, of
`timed.train`.
"""

import contextlib
import json
import sys
from collections.abc import Iterable, Sequence

import torch
from torch import nn
from torch.nn import functional

from benchmarks.peers import timed

_HEAD = 128  # Channels.
_CAP = 15.0  # Of logits.
_SCALE = 0.12  # Of products of normed queries and keys.
_EDGE = 2  # Layers at either end whose values see the token itself.
_UP, _DOWN = 0.02, 0.45  # Shares of the time in which the rate rises and falls.
# Rates of AdamW by group, over Muon's.
_RATES = {'embeddings': 12.0, 'head': 0.16, 'scalars': 0.8}
_NS = (3.4445, -4.7750, 2.0315)
_NS_STEPS = 5
_MOMENTUM = 0.85, 0.95  # It rises over the first steps.
_MOMENTUM_STEPS = 300


def norm(x: torch.Tensor) -> torch.Tensor:
  """RMSNorm of the last axis, without a gain."""
  return functional.rms_norm(x, (x.shape[-1],))


class Layer(nn.Module):
  """Attention and MLP."""

  def __init__(self, width: int, mixes: bool):
    super().__init__()
    self.qkv = nn.Parameter(_uniform(3, width, width))
    self.out = nn.Parameter(torch.zeros(width, width))
    self.up = nn.Parameter(_uniform(4 * width, width))
    self.down = nn.Parameter(torch.zeros(width, 4 * width))
    self.origin = nn.Parameter(torch.tensor([1.0, 0.0]))
    self.mix = nn.Parameter(torch.tensor([0.5, 0.5])) if mixes else None

  def forward(
    self,
    x: torch.Tensor,
    x0: torch.Tensor,
    value: torch.Tensor | None,
    turn: tuple[torch.Tensor, torch.Tensor],
  ) -> torch.Tensor:
    """Adds both to the stream.

    Args:
      x: the stream, [rows, length, width].
      x0: what it began with.
      value: the token's own, with which values are mixed.
      turn: cosines and sines of positions.
    """
    x = self.origin[0] * x + self.origin[1] * x0
    rows, length, width = x.shape
    qkv = functional.linear(norm(x), self.qkv.flatten(0, 1))
    qkv = qkv.view(rows, length, 3, -1, min(_HEAD, width))
    q, k, v = qkv.transpose(1, 3).unbind(2)  # [rows, heads, length, channels]
    if self.mix is not None and value is not None:
      value = value.view(rows, length, -1, v.shape[-1]).transpose(1, 2)
      v = self.mix[0] * v + self.mix[1] * value
    v = v.to(qkv.dtype)
    q, k = (rotate(norm(part), *turn).to(v.dtype) for part in (q, k))
    y = functional.scaled_dot_product_attention(
      q, k, v, is_causal=True, scale=_SCALE
    )
    y = y.transpose(1, 2).reshape(rows, length, width)
    x = x + functional.linear(y, self.out)
    hidden = functional.linear(norm(x), self.up).relu().square()
    return x + functional.linear(hidden, self.down)


class Model(nn.Module):
  """The mean loss of tokens and their targets."""

  def __init__(self, layers: int, width: int, vocab: int, length: int):
    super().__init__()
    self.embed = nn.Embedding(vocab, width)
    edge = min(_EDGE, layers // 2)
    # The last layers share theirs with the first ones.
    self.values = nn.ModuleList(nn.Embedding(vocab, width) for _ in range(edge))
    self.value_of = {i: i for i in range(edge)}
    self.value_of |= {layers - edge + i: i for i in range(edge)}
    self.layers = nn.ModuleList(
      Layer(width, i in self.value_of) for i in range(layers)
    )
    self.skips = nn.Parameter(torch.ones(layers // 2))
    self.head = nn.Parameter(torch.zeros(vocab, width))
    half = min(_HEAD, width) // 2
    angles = torch.outer(
      torch.arange(length), 1e4 ** -(torch.arange(half) / half)
    )
    self.register_buffer('cos', angles.cos(), persistent=False)
    self.register_buffer('sin', angles.sin(), persistent=False)

  def forward(
    self, tokens: torch.Tensor, targets: torch.Tensor
  ) -> torch.Tensor:
    """Cross-entropy in nats, of [rows, length] integers each."""
    return self.losses(tokens, targets).mean()

  def losses(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of each target, [rows, length]."""
    stream = torch.bfloat16 if tokens.is_cuda else torch.float32
    x = x0 = norm(self.embed(tokens)).to(stream)
    values = [embed(tokens) for embed in self.values]
    length, half = tokens.shape[1], len(self.layers) // 2
    turn = self.cos[:length], self.sin[:length]
    kept: list[torch.Tensor] = []
    for i, layer in enumerate(self.layers):
      if i >= len(self.layers) - half:
        x = x + self.skips[len(kept) - 1] * kept.pop()
      value = values[self.value_of[i]] if i in self.value_of else None
      x = layer(x, x0, value, turn)
      if i < half:
        kept.append(x)
    logits = functional.linear(norm(x), self.head).float()
    logits = _CAP * torch.tanh(logits / _CAP)
    found = functional.cross_entropy(
      logits.flatten(0, 1), targets.flatten(), reduction='none'
    )
    return found.view(targets.shape)


def rotate(
  x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
  """Turns pairs of channels of [..., length, channels] by their positions."""
  a, b = x.chunk(2, dim=-1)
  return torch.cat((a * cos + b * sin, b * cos - a * sin), dim=-1)


def orthogonalize(
  x: torch.Tensor, dtype: torch.dtype = torch.bfloat16
) -> torch.Tensor:
  """Matrices [..., rows, columns] with singular values near 1."""
  a, b, c = _NS
  tall = x.shape[-2] > x.shape[-1]
  x = (x.mT if tall else x).to(dtype)
  x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
  for _ in range(_NS_STEPS):
    gram = x @ x.mT
    x = a * x + (b * gram + c * gram @ gram) @ x
  return x.mT if tall else x


class Muon:
  """Nesterov momentum, made orthogonal; matrices of one shape together."""

  def __init__(self, params: Iterable[torch.Tensor], compiles: bool):
    self._by_shape: dict[tuple[int, int], list[torch.Tensor]] = {}
    for p in params:
      self._by_shape.setdefault(p.shape[-2:], []).append(p)
    self._momenta: dict[tuple[int, int], torch.Tensor] = {}
    self._direction = torch.compile(
      _direction, disable=not compiles, dynamic=False
    )

  @torch.no_grad()
  def step(self, rate: float, momentum: float) -> None:
    """Takes a step down the gradients, those of a stack one by one."""
    for shape, params in self._by_shape.items():
      grads = torch.cat([p.grad.view(-1, *shape) for p in params])
      if shape not in self._momenta:
        self._momenta[shape] = torch.zeros_like(grads)
      beta = torch.tensor(momentum, device=grads.device)
      found = self._direction(grads, self._momenta[shape], beta)
      counts = [p.numel() // (shape[0] * shape[1]) for p in params]
      parts = [
        part.view(p.shape).to(p.dtype)
        for p, part in zip(params, found.split(counts), strict=True)
      ]
      torch._foreach_add_(params, parts, alpha=-rate)


def _direction(
  grads: torch.Tensor, momenta: torch.Tensor, beta: torch.Tensor
) -> torch.Tensor:
  """What is subtracted, times the rate; `momenta` go on."""
  momenta.lerp_(grads, 1 - beta)
  found = orthogonalize(grads.lerp(momenta, beta))
  return found * max(1.0, grads.shape[-2] / grads.shape[-1]) ** 0.5


class Optimizer:
  """Muon and AdamW on one schedule.

  Args:
    model: whose parameters to train.
    lr: Muon's rate.
  """

  def __init__(self, model: Model, lr: float):
    compiles = timed.device() == 'cuda'
    self._lr, groups = lr, parts(model)
    self._model, self._muon = model, Muon(groups.pop('matrices'), compiles)
    self._adamw = torch.optim.AdamW(
      [
        {'params': list(params), 'rate': lr * _RATES[name]}
        for name, params in groups.items()
      ],
      betas=(0.8, 0.95),
      eps=1e-10,
      weight_decay=0.0,
      fused=compiles,
    )

  def update(self, step: int, share: float) -> None:
    """See `timed.Optimizer`."""
    factor = trapezoid(share)
    low, high = _MOMENTUM
    risen = min(1.0, step / _MOMENTUM_STEPS)
    self._muon.step(self._lr * factor, low + (high - low) * risen)
    for group in self._adamw.param_groups:
      group['lr'] = group['rate'] * factor
    self._adamw.step()
    self._model.zero_grad(set_to_none=True)


def parts(model: Model) -> dict[str, Sequence[torch.Tensor]]:
  """The parameters by what updates them."""
  scalars = [model.skips, *(p for p in model.layers.parameters() if p.ndim < 2)]
  return {
    'matrices': [p for p in model.layers.parameters() if p.ndim > 1],
    'embeddings': [model.embed.weight, *model.values.parameters()],
    'head': [model.head],
    'scalars': scalars,
  }


def trapezoid(share: float) -> float:
  """The rate over its highest: up, along, down to nothing."""
  return min(1.0, (share + 1e-3) / _UP, max(0.0, 1 - share) / _DOWN)


def _uniform(*shape: int) -> torch.Tensor:
  bound = (3**0.5) * 0.5 * shape[-1] ** -0.5
  return torch.empty(*shape).uniform_(-bound, bound)


def train(how: dict) -> dict:
  """Trains; see `timed.train`, whose `how` has the shape, seed and lr too."""
  torch.manual_seed(how['seed'])
  torch.set_float32_matmul_precision('high')
  shape = (how['layers'], how['width'], how['vocab'], how['length'])
  model = Model(*shape).to(timed.device())
  return timed.train(model, lambda model: Optimizer(model, how['lr']), how)


if __name__ == '__main__':
  with contextlib.redirect_stdout(sys.stderr):
    row = train(json.loads(sys.argv[1]))
  print(json.dumps(row))
