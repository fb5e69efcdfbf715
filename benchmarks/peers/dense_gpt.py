# SPDX-License-Identifier: Apache-2.0
"""A dense GPT in PyTorch, compiled: what one would train instead of a preset.

    python -m benchmarks.peers.dense_gpt '{"layers": 7, "width": 512, ...}'

RMSNorm before attention and a GELU MLP of four times the width, learned
positions, tied embedding; bfloat16 by autocast, scaled_dot_product_attention,
fused AdamW, gradients clipped. Prints one JSON line. With "train", windows of
tokens in a .npy, it trains on them as `timed.train` does; else it times steps
on random tokens.
"""

import contextlib
import json
import math
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional

from benchmarks.peers import timed

_HEAD = 64  # Channels.
_GROUP = 5  # Steps that are timed together.


class Layer(nn.Module):
  """Attention and MLP, each behind a norm."""

  def __init__(self, width: int):
    super().__init__()
    self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
    self.qkv = nn.Linear(width, 3 * width, bias=False)
    self.out = nn.Linear(width, width, bias=False)
    self.up = nn.Linear(width, 4 * width, bias=False)
    self.down = nn.Linear(4 * width, width, bias=False)

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    """Adds both to `x`, [rows, length, width]."""
    rows, length, width = x.shape
    heads = width // min(_HEAD, width)
    qkv = self.qkv(self.norms[0](x)).view(rows, length, 3, heads, -1)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x + self.out(y.transpose(1, 2).reshape(rows, length, width))
    return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Model(nn.Module):
  """The mean loss of tokens and their targets."""

  def __init__(self, layers: int, width: int, vocab: int, length: int):
    super().__init__()
    self.embed = nn.Embedding(vocab, width)
    self.position = nn.Embedding(length, width)
    self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
    self.norm = nn.RMSNorm(width)
    for parameter in self.parameters():
      if parameter.ndim > 1:
        nn.init.normal_(parameter, std=0.02)

  def forward(
    self, tokens: torch.Tensor, targets: torch.Tensor
  ) -> torch.Tensor:
    """Cross-entropy in nats, of [rows, length] integers each."""
    return self.losses(tokens, targets).mean()

  def losses(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of each target, [rows, length]."""
    x = self.embed(tokens) + self.position.weight[: tokens.shape[1]]
    for layer in self.layers:
      x = layer(x)
    logits = self.norm(x) @ self.embed.weight.t()
    found = functional.cross_entropy(
      logits.flatten(0, 1).float(), targets.flatten(), reduction='none'
    )
    return found.view(targets.shape)


def measure(how: dict) -> dict:
  """Trains; see `benchmarks.ladder.peer_of` for what `how` says."""
  cuda = torch.cuda.is_available()
  device = 'cuda' if cuda else 'cpu'
  torch.manual_seed(0)
  torch.set_float32_matmul_precision('high')
  shape = (how['layers'], how['width'], how['vocab'], how['length'])
  model = Model(*shape).to(device)
  run = torch.compile(model, disable=not cuda)
  optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=cuda)
  rows = how['rows'] // how['parts']
  tokens = torch.randint(0, how['vocab'], (rows, how['length'] + 1)).to(device)
  inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

  def step():
    for _ in range(how['parts']):
      with torch.autocast(device, torch.bfloat16, enabled=cuda):
        loss = run(inputs, targets) / how['parts']
      loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

  def timed(count):
    start = time.perf_counter()
    for _ in range(count):
      step()
    if cuda:
      torch.cuda.synchronize()
    return (time.perf_counter() - start) / count

  compile_s = timed(1)
  timed(how['warm_up'])
  times = [timed(_GROUP) for _ in range(max(1, how['steps'] // _GROUP))]
  return {
    'torch': torch.__version__,
    'device': torch.cuda.get_device_name() if cuda else 'cpu',
    'parameters': sum(p.numel() for p in model.parameters()),
    'step_s': statistics.median(times),
    'step_s_all': times,
    'compile_s': compile_s,
    'peak_bytes': torch.cuda.max_memory_allocated() if cuda else None,
    'launches': _launches(step) if cuda else None,
  }


def train(how: dict) -> dict:
  """Trains; see `timed.train`, whose `how` has the shape, seed and lr too."""
  torch.manual_seed(how['seed'])
  torch.set_float32_matmul_precision('high')
  shape = (how['layers'], how['width'], how['vocab'], how['length'])
  model = Model(*shape).to(timed.device())
  _scale_outputs(model)
  return timed.train(model, lambda model: Optimizer(model, how['lr']), how)


class Optimizer:
  """AdamW that lets norms be, with clipped gradients.

  The rate warms up over 100 steps and falls by a cosine to a tenth.

  Args:
    model: whose parameters to train.
    lr: the highest rate.
  """

  def __init__(self, model: Model, lr: float):
    groups = [
      {
        'params': [p for p in model.parameters() if (p.ndim > 1) == decays],
        'weight_decay': 0.1 * decays,
      }
      for decays in (True, False)
    ]
    self._lr, self._model = lr, model
    self._adamw = torch.optim.AdamW(
      groups, betas=(0.9, 0.95), fused=timed.device() == 'cuda'
    )

  def update(self, step: int, share: float) -> None:
    """See `timed.Optimizer`."""
    fall = 0.55 + 0.45 * math.cos(math.pi * share)
    for group in self._adamw.param_groups:
      group['lr'] = self._lr * min(1.0, (step + 1) / 100) * fall
    nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
    self._adamw.step()
    self._model.zero_grad(set_to_none=True)


def _scale_outputs(model: Model) -> None:
  """What is added to the stream starts smaller, as in GPT-2."""
  with torch.no_grad():
    for layer in model.layers:
      for name in ('out', 'down'):
        weight = getattr(layer, name).weight
        weight /= math.sqrt(2 * len(model.layers))


def _launches(step) -> int:
  """Kernels and copies of one step, as the profiler counts them."""
  kinds = [torch.profiler.ProfilerActivity.CUDA]
  with torch.profiler.profile(activities=kinds) as found:
    step()
    torch.cuda.synchronize()
  device = torch.autograd.DeviceType.CUDA
  return sum(event.device_type == device for event in found.events())


if __name__ == '__main__':
  with contextlib.redirect_stdout(sys.stderr):
    how = json.loads(sys.argv[1])
    row = train(how) if 'train' in how else measure(how)
  print(json.dumps(row))
