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
