# SPDX-License-Identifier: Apache-2.0
"""Experts of a few tokens against the reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ops
from ops import dispatch
from ops.experts import few, reference, triton, xla
from ops.triton import backend
from tests.support import close, quick
from tests.support.ops.experts_inputs import CASES, D, arguments

ENGINES = (
  few.picked,
  few.dense,
  ops.expert_mlp_rows,
  triton.expert_mlp_rows,
)
ALL = [(engine, name) for name in CASES for engine in ENGINES]
# It picks the matrices of each token: of many it takes long.
SLOW = (few.picked, 'several_large_blocks')
REFERENCE = jax.jit(reference.expert_mlp)


@pytest.mark.parametrize(
  'pair',
  quick.only(ALL, *(pair for pair in ALL if pair != SLOW)),
  ids=lambda pair: f'{pair[0].__module__}-{pair[0].__name__}-{pair[1]}',
)
def test_engines_for_decoding_equal_the_reference(pair):
  engine, name = pair
  (x, *matrices), choice, _ = arguments(*CASES[name])
  rows = [np.asarray(a).swapaxes(1, 2) for a in matrices]
  found = jax.jit(engine)(x, choice, *rows)
  expected = REFERENCE(x, choice, *matrices)
  close.assert_close(found, expected, close.FLOAT32)


def test_engine_for_decoding_follows_the_number_of_tokens(monkeypatch):
  for name in ('picked', 'dense'):
    monkeypatch.setattr(few, name, lambda *_, name=name: name)
  for engine in (triton, xla):
    name = engine.__name__.rpartition('.')[2]
    monkeypatch.setattr(engine, 'expert_mlp_rows', lambda *_, name=name: name)
  taken = lambda n, dtype='float32': ops.expert_mlp_rows(
    jnp.zeros((n, D), dtype), None, None, None
  )
  assert [taken(n) for n in (1, 4, 5, 500)] == ['picked', 'picked'] + [
    'xla'
  ] * 2
  with dispatch.compile_for('cuda'):
    found = [taken(n) for n in (4, 5, 256, 257)]
    assert found == ['picked', 'dense', 'dense', 'xla']
    assert taken(257, 'bfloat16') == 'triton'
    monkeypatch.setattr(backend, 'plgpu', None)  # A jax without Triton.
    assert taken(257, 'bfloat16') == 'xla'
