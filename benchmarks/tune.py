# SPDX-License-Identifier: Apache-2.0
"""Times settings of our Triton kernels on the device at hand, a line each.

    python -m benchmarks.tune attention [--shape=4x4096] [--documents=700]
    python -m benchmarks.tune cross_entropy [--shape=8192x2048x262272]

Each kernel of attention is timed alone; the settings are those of
`ops.attention.triton.TUNING` and of the constants in
`ops.cross_entropy.triton` and `api`, where the fastest belong.
"""

import argparse
import functools
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from ops import dispatch
from ops.attention import triton as attention
from ops.attention.triton import kernels
from ops.cross_entropy import api
from ops.cross_entropy import triton as cross_entropy
from zaya_jax.bench import timing

HEADS, KV_HEADS, CHANNELS = 8, 2, 128
# Queries, keys, warps, stages.
FORWARD = (
  *itertools.product((128,), (64,), (8,), (1, 2, 3, 4)),
  (128, 128, 8, 2),
  (64, 64, 4, 2),
  (64, 64, 4, 3),
  (128, 32, 4, 2),
)
OF_QUERIES = (
  *itertools.product((128,), (32, 64), (8,), (1, 2, 3)),
  (128, 128, 8, 2),
  (64, 64, 4, 2),
  (64, 32, 4, 3),
)
OF_KEYS = (
  *itertools.product((16, 32, 64), (128,), (8,), (1, 2, 3)),
  (64, 64, 4, 2),
  (32, 64, 4, 2),
  (32, 64, 4, 3),
  (32, 64, 8, 1),
)
# Block and warps; tokens of a part; tokens of a chunk.
SOFTMAX = ((2048, 4), (4096, 4), (4096, 8), (8192, 8), (8192, 16), (16384, 16))
PARTS = ((256, 2048), (512, 2048), (1024, 2048), (512, 1024), (512, 4096))


# What jax and Pallas raise for blocks that they cannot make.
FAILURES = (ArithmeticError, NotImplementedError, TypeError, ValueError)


def tune_attention(shape, documents, repeats) -> Iterator[dict[str, Any]]:
  """A row for each setting of each of the three kernels."""
  batch, length = shape
  rng = np.random.default_rng(0)
  draw = lambda *s: jnp.asarray(
    rng.standard_normal(s, np.float32), jnp.bfloat16
  )
  q, d_out = (draw(batch, length, HEADS, CHANNELS) for _ in range(2))
  k, v = (draw(batch, length, KV_HEADS, CHANNELS) for _ in range(2))
  inputs = {'q': q, 'k': k, 'v': v}
  extras = {}
  if documents:
    starts = rng.random((batch, length)) < 1 / documents
    segments = jnp.asarray(np.cumsum(starts, axis=1), jnp.int32)
    extras = {'q_segments': segments, 'k_segments': segments}
  like = {n: jax.ShapeDtypeStruct(a.shape, a.dtype) for n, a in inputs.items()}
  lse = jax.ShapeDtypeStruct((batch, HEADS, length), jnp.float32)
  found = jax.jit(attention._forward)(inputs, extras)
  given = inputs | {'d_out': d_out, 'lse': found['lse'], 'delta': found['lse']}
  for kernel, side, settings, arrays, results in (
    (kernels.forward, 0, FORWARD, inputs, {'out': like['q'], 'lse': lse}),
    (kernels.of_queries, 0, OF_QUERIES, given, {'q': like['q']}),
    (kernels.of_keys, 1, OF_KEYS, given, {n: like[n] for n in 'kv'}),
  ):
    for setting in settings:
      blocks = attention.Blocks(*setting)
      run = functools.partial(
        attention.call, kernel, blocks, side, results=results
      )
      row = {'kernel': kernel.__name__, **blocks._asdict()}
      yield row | measure(
        lambda a, e, f=run: f(a, e), (arrays, extras), repeats
      )


def tune_cross_entropy(shape, repeats) -> Iterator[dict[str, Any]]:
  """A row for each setting, of value and gradients."""
  tokens, d_model, vocab = shape
  keys = jax.random.split(jax.random.key(0), 3)
  args = (
    jax.random.normal(keys[0], (tokens, d_model), jnp.bfloat16) / 16,
    jax.random.normal(keys[1], (vocab, d_model), jnp.bfloat16),
    jax.random.randint(keys[2], (tokens,), 0, vocab),
    jnp.ones(tokens, jnp.float32),
  )
  here = dispatch.platform()
  settings = [(s, PARTS[0], jnp.float32) for s in SOFTMAX]
  settings += [
    (cross_entropy._BLOCK[here], p, t)
    for p in PARTS
    for t in (jnp.float32, jnp.bfloat16)
  ]
  for block, (part, chunk), logits in settings:
    with (
      mock.patch.multiple(api, _PART=part * vocab, _CHUNK=chunk * vocab),
      mock.patch.multiple(cross_entropy, _BLOCK={here: block}, _LOGITS=logits),
    ):
      # A new function each time: jax would find the one traced before.
      run = jax.value_and_grad(
        lambda *a: cross_entropy.linear_cross_entropy(*a), (0, 1)
      )
      row = {'block': block[0], 'warps': block[1], 'part': part}
      row |= {'chunk': chunk, 'logits': jnp.dtype(logits).name}
      yield row | measure(run, args, repeats)


def measure(run: Callable[..., Any], args, repeats) -> dict[str, Any]:
  """Gives ms and temporary_mb, or why it `failed`, as some settings do."""
  try:
    (_, median, _), temporary = timing.measure(run, args, repeats)
  except (*FAILURES, jax.errors.JaxRuntimeError) as error:
    return {'failed': (str(error).splitlines() or [''])[0][:200]}
  return {'ms': median * 1e3, 'temporary_mb': temporary / 1e6}


def main() -> None:
  """See the module."""
  parser = argparse.ArgumentParser()
  parser.add_argument('op', choices=['attention', 'cross_entropy'])
  parser.add_argument('--documents', type=int, default=0)
  add_flags(parser)
  flags = parser.parse_args()
  if flags.op == 'attention':
    shape = flags.shape or (4, 4096)
    rows = tune_attention(shape, flags.documents, flags.repeats)
  else:
    shape = flags.shape or (8192, 2048, 262272)
    rows = tune_cross_entropy(shape, flags.repeats)
  show(rows)


def add_flags(parser: argparse.ArgumentParser) -> None:
  """--shape=4x4096 and --repeats."""
  sizes = lambda text: [int(size) for size in text.split('x')]
  parser.add_argument('--shape', type=sizes)
  parser.add_argument('--repeats', type=int, default=5)


def show(rows: Iterator[dict[str, Any]]) -> None:
  """One JSON line for each, as soon as it is there."""
  for row in rows:
    print(json.dumps(row), flush=True)


if __name__ == '__main__':
  main()
