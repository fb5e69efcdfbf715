# SPDX-License-Identifier: Apache-2.0
"""The residual merge with its norm: closed forms, and mistakes that show."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ops
from tests.support.ops.residual_inputs import (
  arguments,
  differ,
  outputs_and_gradients,
)


def test_is_the_formula_of_the_model():
  args, kwargs = arguments()
  new, normed = ops.residual_rms_norm(*args, **kwargs)
  h, x, s_h, b_h, s_r, b_r, scale = (np.float64(a) for a in args)
  z = (h + b_h) * s_h + (x + b_r) * s_r
  np.testing.assert_allclose(new, z, rtol=1e-5, atol=1e-5)
  rms = np.sqrt(np.mean(z**2, -1, keepdims=True) + 1e-5)
  np.testing.assert_allclose(normed, z / rms * scale, rtol=1e-5, atol=1e-5)


def test_keeps_the_stream_in_float32():
  args, kwargs = arguments()
  args[0] = args[0].astype(jnp.bfloat16)
  kwargs['dtype'] = jnp.bfloat16
  new, normed = ops.residual_rms_norm(*args, **kwargs)
  assert (new.dtype, normed.dtype) == (jnp.float32, jnp.bfloat16)


def test_shapes_that_do_not_fit_are_refused():
  args, kwargs = arguments()
  with pytest.raises(ValueError, match='do not fit'):
    ops.residual_rms_norm(*args[:6], args[6][:-1], **kwargs)
  weight = jnp.ones(args[1].shape[:-1])
  row = jnp.arange(weight.size, dtype=jnp.int32).reshape(weight.shape)
  branch, *rest = args
  for taken in ((weight,), (weight, row), (weight, row[:-1], row[0, 0])):
    with pytest.raises(ValueError, match='do not fit'):
      ops.residual_rms_norm(
        branch.reshape(-1, branch.shape[-1]), *rest, *taken, **kwargs
      )


def test_a_branch_in_other_rows_is_that_in_order():
  args, kwargs = arguments()
  branch, *rest = args
  shape = branch.shape[:-1]
  weight = jnp.linspace(-1, 2, branch[..., 0].size).reshape(shape)
  wanted = ops.residual_rms_norm(weight[..., None] * branch, *rest, **kwargs)
  flat = branch.reshape(-1, branch.shape[-1])
  row = jnp.arange(len(flat), dtype=jnp.int32)[::-1].reshape(shape)
  spare = jnp.zeros(0, jnp.int32)
  found = ops.residual_rms_norm(flat[::-1], *rest, weight, row, spare, **kwargs)
  assert not differ(found, wanted)
  assert differ(
    ops.residual_rms_norm(flat, *rest, weight, row, spare, **kwargs), wanted
  )


def _bias_after_scale(h, x, s_h, b_h, s_r, b_r, scale, **kwargs):
  zero = jnp.zeros_like(b_h)
  h = h * s_h[None, None, None] + b_h[None, None, None]
  one = jnp.ones_like(s_h)
  return ops.residual_rms_norm(h, x, one, zero, s_r, b_r, scale, **kwargs)


def _stream_without_gradient(*args, **kwargs):
  new, normed = ops.residual_rms_norm(*args, **kwargs)
  return jax.lax.stop_gradient(new), normed


def _norm_without_gradient(*args, **kwargs):
  new, normed = ops.residual_rms_norm(*args, **kwargs)
  return new, jax.lax.stop_gradient(normed)


@pytest.mark.parametrize(
  ('mistake', 'shows'),
  [
    (_bias_after_scale, {0, 1, 4, 5}),
    (_stream_without_gradient, {2, 3, 7}),
    (_norm_without_gradient, {2, 3, 8}),
  ],
)
def test_mistakes_show(mistake, shows):
  args, kwargs = arguments()
  wanted = outputs_and_gradients(ops.residual_rms_norm, args, kwargs)
  assert shows <= differ(outputs_and_gradients(mistake, args, kwargs), wanted)
