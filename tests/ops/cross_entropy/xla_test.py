# SPDX-License-Identifier: Apache-2.0
"""The chunks of plain XLA: how large, and what is never in memory."""

import jax
import jax.numpy as jnp
import pytest

import ops
from ops.cross_entropy import reference, xla


@pytest.mark.parametrize(
  'tokens, vocab, limit, chunk',
  [
    (12, 7, 84, 12),
    (12, 7, 83, 6),
    (12, 7, 30, 4),
    (13, 7, 90, 1),
    (6, 9, 1, 1),
  ],
)
def test_chunk_is_the_largest_that_divides_and_fits(
  tokens, vocab, limit, chunk
):
  assert xla.chunk_tokens(tokens, vocab, limit) == chunk


def test_all_logits_are_never_in_memory(monkeypatch):
  # Not of the kernel: interpreted, it copies.
  monkeypatch.setattr(xla, 'chunk_tokens', lambda tokens, vocab: 8)
  tokens, vocab, width = 512, 2048, 2

  def scratch(function):
    run = lambda x, head: function(
      x, head, jnp.zeros(tokens, jnp.int32), jnp.ones(tokens)
    )
    compiled = jax.jit(jax.grad(run)).lower(
      jnp.zeros((tokens, width)), jnp.zeros((vocab, width))
    )
    return compiled.compile().memory_analysis().temp_size_in_bytes

  logits = 4 * tokens * vocab
  assert scratch(ops.linear_cross_entropy) < logits / 4
  assert scratch(reference.linear_cross_entropy) >= logits
