# SPDX-License-Identifier: Apache-2.0
"""Cross-entropy in Triton: in place, and mistakes that show."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ops
from ops import dispatch
from ops.cross_entropy import reference, triton
from tests.support import gpus
from tests.support.ops.cross_entropy_inputs import (
  POISON,
  arguments,
  assert_nan_as_the_reference,
  value_and_gradients,
)


def test_kernel_writes_in_place():
  x = jax.ShapeDtypeStruct((512, 128), jnp.bfloat16)
  head = jax.ShapeDtypeStruct((262_272, 128), jnp.bfloat16)
  token = lambda dtype: jax.ShapeDtypeStruct((512,), dtype)
  run = jax.jit(jax.value_and_grad(ops.linear_cross_entropy, (0, 1)))
  with dispatch.compile_for('rocm'), dispatch.use(cross_entropy='triton'):
    traced = run.trace(x, head, token(jnp.int32), token(jnp.float32))
    text = gpus.lower(traced, 'rocm').as_text()
  assert 'cross_entropy_softmax' in text
  assert 'output_operand_alias' in text


LOAD, STORE = triton.plgpu.load, triton.plgpu.store
MUTANTS = {
  'last_columns_not_written': (
    (triton.plgpu, 'store'),
    lambda ref, value, mask: STORE(
      ref, value, mask=mask & (jnp.arange(mask.size) < 5)
    ),
  ),
  'no_mask_of_columns': (
    (triton.plgpu, 'load'),
    lambda ref, mask, other: LOAD(ref, mask=mask, other=0.0),
  ),
  'never_over_again': ((triton, '_FAR'), 1e9),
}


@pytest.mark.parametrize('name', [None, *MUTANTS])
def test_mutants_of_the_kernel_are_caught(name, monkeypatch):
  if name:
    monkeypatch.setattr(*MUTANTS[name][0], MUTANTS[name][1])
  x, head, bias, target, weight = arguments()
  error = 0.0
  # Beyond the first block, 16 columns, logits of some units, or of hundreds.
  for factor in (1, 40):
    more = jnp.concatenate([head, head, factor * head])
    given = (x, more, jnp.tile(bias, 3), target, weight)
    with dispatch.use(cross_entropy='triton'):
      found = value_and_gradients(ops.linear_cross_entropy, *given)
    expected = value_and_gradients(reference.linear_cross_entropy, *given)
    for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
      worst = np.abs(np.nan_to_num(a, nan=1e9) - b).max() / np.abs(b).max()
      error = max(error, worst)
  assert (error > 1e-2) if name else (error < 1e-5)


@pytest.mark.parametrize('name', POISON)
def test_nan_shows_though_the_maximum_of_gpus_drops_it(name, monkeypatch):
  monkeypatch.setattr(jnp, 'maximum', jnp.fmax)
  monkeypatch.setattr(jnp, 'max', jnp.nanmax)
  assert_nan_as_the_reference('triton', name)
