# SPDX-License-Identifier: Apache-2.0
"""The scaling law: the loss to expect of a size and a length of training.

    L = (E + A / N^a + B / D^b) / W^c,   N = active * (total / active)^g

L in bits per byte of held-out text; active and total parameters without the
embedding and the head; D in bytes of text, since tokenizers differ; W in KiB of
text that a row holds, which grows with its tokens and with the vocabulary. The
three terms are Chinchilla's (arXiv 2203.15556); g says what the experts that a
token does not use are worth, c what text before it is. `python -m
benchmarks.dial --law` fits it and writes law.toml; without that file no loss is
expected.
"""

import bisect
import dataclasses
import math
import pathlib
import tomllib
from typing import Self

from zaya_jax import config as config_lib
from zaya_jax.model import flops

FILE = pathlib.Path(__file__).with_name('law.toml')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Law:
  """A fitted law, and what it was fitted to.

  Attributes:
    constants: E, A, a, B, b, g and c.
    covers: of active, total, bytes and context the least and the most.
    bytes_per_token: of vocabularies, ascending.
    held_out: relative error at the largest run, from all others.
    about: command, date, hardware and text, for people.
  """

  constants: dict[str, float]
  covers: dict[str, tuple[float, float]]
  bytes_per_token: dict[int, float]
  held_out: float
  about: dict[str, str]

  @classmethod
  def read(cls, path: pathlib.Path | None = None) -> Self | None:
    """Of a file, by default the one of the program; None: there is none."""
    path = path or FILE
    if not path.exists():
      return None
    found = tomllib.loads(path.read_text(encoding='utf-8'))
    known = {int(rows): n for rows, n in found.pop('bytes_per_token').items()}
    return cls(bytes_per_token=dict(sorted(known.items())), **found)

  def loss(self, size: dict[str, float]) -> float:
    """Bits per byte.

    Args:
      size: active, total, bytes, and context: bytes of a row, of which more
        than it covers are worth nothing.
    """
    context = min(size['context'], self.covers['context'][1])
    return loss(self.constants, {**size, 'context': context})

  def beyond(self, size: dict[str, float]) -> dict[str, float]:
    """How often what it covers each is exceeded, or fallen below (< 1)."""
    found = {}
    for name, (low, high) in self.covers.items():
      inside = min(max(size[name], low), high)
      if not math.isclose(inside, size[name], rel_tol=0.01):
        found[name] = size[name] / inside
    return found

  def size(self, config: config_lib.Config, tokens: float) -> dict[str, float]:
    """Active and total parameters, bytes of so many tokens and of a row."""
    each = self._bytes(config.model.vocab_size)
    return {
      **parameters(config.model),
      'bytes': tokens * each,
      'context': config.data.seq_len * each,
    }

  def _bytes(self, vocabulary: int) -> float:
    """Of a token: linear in the logarithm of the vocabulary, flat outside."""
    known = [*self.bytes_per_token]
    at = bisect.bisect(known, vocabulary)
    if at in (0, len(known)):
      return self.bytes_per_token[known[max(0, at - 1)]]
    low, high = known[at - 1], known[at]
    part = math.log(vocabulary / low) / math.log(high / low)
    first, last = self.bytes_per_token[low], self.bytes_per_token[high]
    return first + part * (last - first)


def loss(constants: dict[str, float], size: dict[str, float]) -> float:
  """Bits per byte by these constants: see `Law.loss`."""
  c = constants
  effective = size['active'] * (size['total'] / size['active']) ** c['g']
  terms = c['E'], c['A'] / effective ** c['a'], c['B'] / size['bytes'] ** c['b']
  return sum(terms) / (size['context'] / 1024) ** c['c']


def parameters(model: config_lib.ModelConfig) -> dict[str, float]:
  """Active and total, both without the embedding and the head."""
  count = flops.parameters(model)
  heads = 1 if model.tie_embeddings else 2
  vocabulary = heads * model.vocab_size * model.d_model
  return {'active': count.active, 'total': count.total - vocabulary}
