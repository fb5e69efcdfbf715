# SPDX-License-Identifier: Apache-2.0
"""The residual merge with its norm: closed forms, and mistakes that show."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ops
from ops import dispatch
from ops.residual_rms_norm import api, cases, triton

CASE = next(c for c in cases.CASES if c.name == '3x1x5x96')


def _arguments():
  args, kwargs = CASE.arguments(np.random.default_rng(0), np.dtype('float32'))
  return [jnp.asarray(a) for a in args], kwargs


def _outputs_and_gradients(run, args, kwargs):
  out, vjp = jax.vjp(lambda *args: run(*args, **kwargs), *args)
  rng = np.random.default_rng(1)
  draw = lambda a: jnp.asarray(rng.standard_normal(a.shape), a.dtype)
  return [*out, *vjp(jax.tree.map(draw, out))]


def _differ(found, wanted):
  """Indices of what differs by more than rounding."""
  pairs = enumerate(zip(found, wanted, strict=True))
  far = lambda a, b: not np.allclose(a, b, rtol=0, atol=1e-4 * np.abs(b).max())
  return {i for i, (a, b) in pairs if far(a, b)}


def test_is_the_formula_of_the_model():
  args, kwargs = _arguments()
  new, normed = ops.residual_rms_norm(*args, **kwargs)
  h, x, s_h, b_h, s_r, b_r, scale = (np.float64(a) for a in args)
  z = (h + b_h) * s_h + (x + b_r) * s_r
  np.testing.assert_allclose(new, z, rtol=1e-5, atol=1e-5)
  rms = np.sqrt(np.mean(z**2, -1, keepdims=True) + 1e-5)
  np.testing.assert_allclose(normed, z / rms * scale, rtol=1e-5, atol=1e-5)


def test_keeps_the_stream_in_float32():
  args, kwargs = _arguments()
  args[0] = args[0].astype(jnp.bfloat16)
  kwargs['dtype'] = jnp.bfloat16
  new, normed = ops.residual_rms_norm(*args, **kwargs)
  assert (new.dtype, normed.dtype) == (jnp.float32, jnp.bfloat16)


def test_shapes_that_do_not_fit_are_refused():
  args, kwargs = _arguments()
  with pytest.raises(ValueError, match='do not fit'):
    ops.residual_rms_norm(*args[:6], args[6][:-1], **kwargs)


def test_triton_refuses_what_it_cannot_take():
  none, long = jnp.zeros((0, 8)), jnp.zeros((1, 9000))
  assert 'no rows' in triton.unsupported(none, none)
  assert '9000' in triton.unsupported(long, long)


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
  args, kwargs = _arguments()
  wanted = _outputs_and_gradients(ops.residual_rms_norm, args, kwargs)
  assert shows <= _differ(_outputs_and_gradients(mistake, args, kwargs), wanted)


def _no_mask(monkeypatch):
  columns = triton._columns

  def wide(d_model):
    place, mask = columns(d_model)
    return place, jnp.ones_like(mask)

  monkeypatch.setattr(triton, '_columns', wide)


def _one_program_of_all(monkeypatch):
  """The others' parts of the vectors' gradients are lost."""
  total = jnp.sum
  monkeypatch.setattr(
    api.jnp,
    'sum',
    lambda a, axis=None, **kw: a[0] if axis == 0 else total(a, axis, **kw),
  )


@pytest.mark.parametrize(
  ('mistake', 'shows'),
  [(_no_mask, {1, 2, 3}), (_one_program_of_all, {4, 5, 6, 7, 8})],
)
def test_mistakes_of_the_kernel_show(mistake, shows, monkeypatch):
  args, kwargs = _arguments()
  wanted = _outputs_and_gradients(ops.residual_rms_norm, args, kwargs)
  with dispatch.use(residual_rms_norm='triton'):
    right = _outputs_and_gradients(ops.residual_rms_norm, args, kwargs)
    assert not _differ(right, wanted)
    mistake(monkeypatch)
    wrong = _outputs_and_gradients(ops.residual_rms_norm, args, kwargs)
  assert shows <= _differ(wrong, wanted)
