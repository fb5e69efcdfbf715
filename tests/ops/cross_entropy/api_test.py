# SPDX-License-Identifier: Apache-2.0
"""What the kernels of cross-entropy share: chunks, parts, limits."""

import jax
import jax.numpy as jnp
import pytest

from ops.cross_entropy import api
from tests.support.ops.cross_entropy_inputs import D, arguments


@pytest.mark.parametrize('tokens', [1, 255, 256, 2049, 8192, 16384, 100_003])
@pytest.mark.parametrize('vocab', [7, 4096, 262_272])
def test_parts_hold_all_tokens_and_little_more(tokens, vocab):
  chunks, count, rows = api.parts(tokens, vocab)
  assert tokens <= chunks * count * rows < tokens + chunks * (count + 1)
  assert count * rows * vocab <= api._CHUNK + (count + 1) * vocab
  assert rows * vocab <= api._PART + vocab
  if vocab == 262_272 and tokens == 8192:
    assert (chunks, count, rows) == (4, 8, 256)


def test_kernel_says_what_it_does_not_take():
  x, head, *_ = arguments()
  assert api.unsupported(x, head) is None
  assert 'head' in api.unsupported(x, head.astype(jnp.bfloat16))
  assert 'no tokens' in api.unsupported(x[:0], head)
  large = jax.ShapeDtypeStruct((10**9, D), jnp.float32)
  assert 'vocabulary' in api.unsupported(x, large)
