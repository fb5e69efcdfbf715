# SPDX-License-Identifier: Apache-2.0
"""The operations as a user of PyTorch has them; prints a JSON line for each.

    python benchmarks/peers/torch_kernels.py '{"tokens": 16384, ...}'

The sizes are `Sizes`. Each operation is taken from PyTorch in the ways that it
offers (eager, torch.compile, its own kernels), in bfloat16.
"""

import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence

import torch

Q = (3.4445, -4.7750, 2.0315)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
  """Of ZAYA1-8B; a test takes smaller ones."""

  tokens: int = 16384
  width: int = 2048
  experts: int = 16
  inner: int = 2048
  heads: int = 8
  kv_heads: int = 2
  channels: int = 128
  rows: int = 4
  vocab: int = 262272
  head_tokens: int = 8192
  stack: int = 16
  # Tokens of each expert, by the name of the case; the rest is skipped.
  loads: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
  repeats: int = 20


class Peers:
  """The programs; each method yields name, function and pass."""

  def __init__(self, sizes: Sizes, device: str):
    self.sizes, self.device = sizes, device
    torch.manual_seed(0)

  def _draw(self, *shape, std=1.0, dtype=torch.bfloat16, grad=True):
    x = std * torch.randn(*shape, device=self.device, dtype=dtype)
    return x.requires_grad_(grad)

  def _compile(self, f):
    return torch.compile(f) if self.device == 'cuda' else f

  def newton_schulz(self):
    """Batched, as modded-nanogpt writes it."""
    n = self.sizes.inner

    def run(g):
      x = g.mT if g.size(-2) > g.size(-1) else g
      x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
      a, b, c = Q
      for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
      return x.mT if g.size(-2) > g.size(-1) else x

    for rows in (2 * n, n):
      g = self._draw(self.sizes.stack, rows, n, grad=False)
      case = f'{self.sizes.stack}x{rows}x{n}'
      for name, f in (('eager', run), ('compile', self._compile(run))):
        yield case, f'torch {name}', 'forward', lambda f=f, g=g: f(g)

  def experts(self):
    """SwiGLU experts by grouped_mm, tokens sorted and without the skipped."""
    s = self.sizes
    name = f'balanced-{s.tokens}x{s.width}-{s.experts}x{s.inner}'
    even = {name: [s.tokens // s.experts] * s.experts}
    for case, loads in (dict(s.loads) or even).items():
      yield from self._experts(case, loads)

  def _experts(self, case, loads):
    s = dataclasses.replace(self.sizes, tokens=sum(loads))
    ends = torch.tensor(loads).cumsum(0).int().to(self.device)
    x, dy = (self._draw(s.tokens, s.width) for _ in range(2))
    gate_up = self._draw(s.experts, 2 * s.inner, s.width, std=s.width**-0.5)
    down = self._draw(s.experts, s.width, s.inner, std=s.inner**-0.5)

    def run(x, gate_up, down):
      product = torch.nn.functional.grouped_mm
      h = product(x, gate_up.mT, offs=ends)
      gate, up = h.chunk(2, -1)
      return product(torch.nn.functional.silu(gate) * up, down.mT, offs=ends)

    yield from self._both(case, run, (x, gate_up, down), dy)

  def attention(self):
    """Causal grouped-query attention by each of PyTorch's kernels."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    s = self.sizes
    length = s.tokens // s.rows
    q, dy = (self._draw(s.rows, s.heads, length, s.channels) for _ in range(2))
    k, v = (
      self._draw(s.rows, s.kv_heads, length, s.channels) for _ in range(2)
    )
    kinds = ('CUDNN_ATTENTION', 'FLASH_ATTENTION')
    for kind in kinds if self.device == 'cuda' else ('MATH',):

      def run(q, k, v, kind=kind):
        with sdpa_kernel(getattr(SDPBackend, kind)):
          return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=True
          )

      name = f'torch sdpa {kind.split("_")[0].lower()}'
      yield from self._both(
        f'{s.rows}x{length}', run, (q, k, v), dy, ways={name: run}
      )

  def cross_entropy(self):
    """Head and loss, as it is written in PyTorch."""
    s = self.sizes
    x = self._draw(s.head_tokens, s.width)
    head = self._draw(s.vocab, s.width, std=s.width**-0.5)
    y = torch.randint(0, s.vocab, (s.head_tokens,), device=self.device)
    run = lambda x, head: torch.nn.functional.cross_entropy(
      (x @ head.T).float(), y
    )
    case = f'{s.head_tokens}x{s.width}x{s.vocab}'
    yield from self._both(case, run, (x, head), None)

  def residual_rms_norm(self):
    """ZAYA's residual merge and the norm behind it; float32 residual."""
    s = self.sizes
    branch, dy = (self._draw(s.tokens, s.width) for _ in range(2))
    x, dx = (self._draw(s.tokens, s.width, dtype=torch.float32) for _ in 'ab')
    vectors = [self._draw(s.width, dtype=torch.float32) for _ in range(5)]

    def run(branch, x, a, b, c, d, scale):
      x = (branch + b) * a + (x + d) * c
      y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * scale
      return x, y.to(branch.dtype)

    yield from self._both(
      f'{s.tokens}x{s.width}', run, (branch, x, *vectors), (dx, dy)
    )

  def _both(self, case, run, inputs, cotangent, ways=None):
    """Eager and compiled, value alone and with gradients."""
    ways = ways or {'torch eager': run, 'torch compile': self._compile(run)}
    for name, f in ways.items():

      def forward(f=f):
        with torch.no_grad():
          return f(*inputs)

      def both(f=f):
        for x in inputs:
          x.grad = None
        out = f(*inputs)
        torch.autograd.backward(out, cotangent)

      yield case, name, 'forward', forward
      yield case, name, 'both', both


OPS = (
  'newton_schulz',
  'experts',
  'attention',
  'cross_entropy',
  'residual_rms_norm',
)


def measure(f, repeats: int, device: str) -> dict[str, float]:
  """Median milliseconds, and the peak of memory above what was held."""
  f()
  f()  # A compiled backward pass is compiled by the second call.
  cuda = device == 'cuda'
  base = 0
  if cuda:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated()
  times = []
  for _ in range(repeats):
    start = time.perf_counter()
    for _ in range(5):
      f()
    if cuda:
      torch.cuda.synchronize()
    times.append((time.perf_counter() - start) / 5 * 1e3)
  found = {'ms': statistics.median(times)}
  if cuda:
    found['peak_mb'] = (torch.cuda.max_memory_allocated() - base) / 1e6
  return found


def main(argv: list[str]) -> None:
  """Prints a row for each operation of `argv[1:]`, by default all."""
  sizes = Sizes(**json.loads(argv[0] if argv else '{}'))
  device = 'cuda' if torch.cuda.is_available() else 'cpu'
  peers = Peers(sizes, device)
  for op in argv[1:] or OPS:
    for case, name, direction, run in getattr(peers, op)():
      row = {'op': op, 'case': case, 'engine': name, 'pass': direction}
      try:
        row |= measure(run, sizes.repeats, device)
      except (RuntimeError, AttributeError) as error:
        row['skipped'] = str(error).splitlines()[0]
      print(json.dumps(row), flush=True)


if __name__ == '__main__':
  main(sys.argv[1:])
