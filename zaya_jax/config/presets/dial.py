# SPDX-License-Identifier: Apache-2.0
"""--dial=N: a model of N layers, and all that training it needs, by rules.

Each rule takes what the rules before it gave, or what was said in place of it:
`--dial=20 --model.d_model=512` has the heads, tokens and learning rate of a
width of 512. At 40 the shape is ZAYA1-8B's.

The learning rate is PEAK at `_WIDTH`, `_LAYERS` and `_STEP`, and goes with
powers of them; `benchmarks.dial --fit` says how well.
"""

import math
from collections.abc import Mapping
from typing import Any

MOST = 128

# Width of a layer of ZAYA1-8B: 2,048 / 40. Loss hardly depends on it (Kaplan et
# al., arXiv 2001.08361, figure 5), so that one number can be both.
ASPECT = 51.2
# Chinchilla (arXiv 2203.15556): 20 tokens for each parameter; of a mixture of
# experts for each that a token uses.
TOKENS_PER_PARAMETER = 20
# Tokens of a step, c * tokens^b (Step Law, arXiv 2503.04715: 3,700 runs, dense
# and of experts): 0.64 to 1.7 times that of our presets, quick start to
# ZAYA1-8B. A critical batch grows alike (arXiv 2410.21676: 0.47).
BATCH, BATCH_EXPONENT = 0.58, 0.571
# By the best rates of dials 1 to 12 (docs/dial.md). From dial 4 on a rate of
# twice or half the best one costs 0.7 % of the loss.
PEAK = 3.4e-3
_WIDTH, _LAYERS, _STEP = 1024, 20, 131_072
# µP (arXiv 2203.03466) wants updates whose spectral norm does not grow with the
# width (arXiv 2310.17813). Muon's are 0.2 sqrt(width), to match AdamW's size
# (arXiv 2502.16982), so that the rate makes up for it.
WIDTH_EXPONENT = -0.5
# The same for depth (arXiv 2310.02244). Along the dial layers are width: a fit
# sees the sum of both exponents.
LAYERS_EXPONENT = -0.5
# Half of that of Adam with small batches (arXiv 2205.10287). The runs of
# docs/dial.md allow for both, but the smallest of them want this one.
STEP_EXPONENT = 0.25
FINAL = 0.1  # Of the peak, at the end.
WARMUP = 0.02  # Of the steps.

# What of a command line says how large the model is, and how long a run.
SHAPE = tuple(
  f'model.{name}'
  for name in (
    *('num_layers', 'd_model', 'head_dim', 'num_heads', 'num_kv_heads'),
    *('num_experts', 'd_expert', 'd_router', 'vocab_size'),
  )
)
SIZES = (*SHAPE, 'data.seq_len', 'data.batch_size')  # Each at least 1.
LENGTHS = ('recipe', 'num_steps', 'tokens', 'epochs', 'hours')

_BYTES = 320  # Rows of the embedding for bytes: --data.tokenizer=bytes.
_GEMMA = 262_272  # ZAYA1-8B's: the tokenizer of Gemma 3, padded to 128.


def settings(
  n: int, given: Mapping[str, Any], tokens: int | None = None
) -> dict[str, Any]:
  """What the dial sets, by the names of flags.

  Args:
    n: the dial.
    given: flags that were given, which are not set and lead the rules.
    tokens: of the run, if they were said; else `given` may have num_steps.
  """
  found = dict(given)
  put = found.setdefault
  put('model.num_layers', n)
  size = put('model.d_model', width(n))
  head = put('model.head_dim', head_width(size))
  heads = put('model.num_heads', num_heads(size, head))
  put('model.num_kv_heads', num_kv_heads(heads))
  put('model.num_experts', num_experts(size))
  put('model.d_expert', size)
  put('model.d_router', tile(size))
  _put_vocabulary(found, n)
  own = TOKENS_PER_PARAMETER * active(found)
  length = put('data.seq_len', seq_len(size))
  step = length * put('data.batch_size', batch_size(tokens or own, length))
  if not tokens and given.get('num_steps', 0) > 0:
    tokens = given['num_steps'] * step
  tokens = tokens or own
  steps = -(-tokens // step)
  if not any(given.get(name) for name in LENGTHS):
    put('num_steps', steps)
  rate = put('optim.lr', learning_rate(size, found['model.num_layers'], step))
  put('optim.lr_final', _rounded(FINAL * rate))
  put('optim.warmup_steps', warmup(steps))
  return {name: value for name, value in found.items() if name not in given}


def width(n: int) -> int:
  """D: ASPECT times the layers, in whole tiles of a quarter to an eighth."""
  exact = ASPECT * n
  unit = tile(exact)
  return max(64, unit * math.floor(exact / unit + 0.5))


def tile(size: float) -> int:
  """A power of two of at most a quarter of the width, from 32 to 256.

  What widths are multiples of, so that matrix units are filled; and the width
  of the router, which is 256 in ZAYA1-8B.
  """
  return min(256, max(32, 2 ** int(math.log2(max(4, size / 4)))))


def head_width(size: int) -> int:
  """C: 128, which all kernels take; less where that is no part of the width."""
  return 128 if size >= 512 else 64 if size >= 256 else 32


def num_heads(size: int, head: int) -> int:
  """H: queries have about half of the width, as in ZAYA1-8B; an even number."""
  return 2 * max(1, math.floor(size / (4 * head) + 0.5))


def num_kv_heads(heads: int) -> int:
  """K: 2 as in ZAYA1-8B where each has several queries, else 1."""
  return 2 if heads >= 4 and heads % 2 == 0 else 1


def num_experts(size: int) -> int:
  """E: 16 as in ZAYA1-8B; fewer where a batch has few tokens for each."""
  return 16 if size >= 512 else 8 if size >= 256 else 4


def vocabulary(n: int) -> int:
  """V: a power of two that grows as the parameters of a token do.

  As our presets have it; at 40 and above the tokenizer of Gemma 3. Too small a
  text for it needs --model.vocab_size. Below 512 tokens are bytes.
  """
  exact = 18 + 3 * math.log2(n / 40)
  if exact < 8.5:
    return _BYTES
  return 2 ** round(exact) if exact < 17.5 else _GEMMA


def active(found: Mapping[str, Any]) -> int:
  """Parameters that a token uses besides the embedding.

  As `model.flops` counts them, without norms, scales and biases.
  """
  model = {name.removeprefix('model.'): found[name] for name in SHAPE}
  size, head, router = model['d_model'], model['head_dim'], model['d_router']
  heads = model['num_heads'] + model['num_kv_heads']
  attention = 2 * size * head * heads + 2 * heads * head**2
  expert = 3 * size * model['d_expert']
  choice = router * (size + 2 * router + model['num_experts'] + 1)
  return model['num_layers'] * (attention + expert + choice)


def seq_len(size: int) -> int:
  """L: twice the width, as a power of two from 128 to 4,096."""
  return min(4096, max(128, 2 ** (1 + int(math.log2(size)))))


def batch_size(tokens: int, length: int) -> int:
  """B: rows of a step, a power of two that many devices can share."""
  rows = BATCH * tokens**BATCH_EXPONENT / length
  return 2 ** max(2, round(math.log2(rows)))


def learning_rate(size: int, layers: int, step: int) -> float:
  """The peak of Muon and AdamW, which share it, in three digits.

  Args:
    size: D.
    layers: N.
    step: tokens of a step.
  """
  return _rounded(
    PEAK
    * (size / _WIDTH) ** WIDTH_EXPONENT
    * (layers / _LAYERS) ** LAYERS_EXPONENT
    * (step / _STEP) ** STEP_EXPONENT
  )


def warmup(steps: int) -> int:
  """Steps of linear warmup."""
  return min(2000, max(10, round(WARMUP * steps)))


def _put_vocabulary(found: dict[str, Any], n: int) -> None:
  """The vocabulary and, unless one was named, its tokenizer."""
  trained = found.get('data.train_tokenizer')
  rows = found.setdefault('model.vocab_size', trained or vocabulary(n))
  named = found.get('data.tokenizer', 'bytes') != 'bytes'
  trains = rows > _BYTES and not named
  found.setdefault('data.train_tokenizer', rows if trains else 0)


def _rounded(value: float) -> float:
  return float(f'{value:.3g}')
