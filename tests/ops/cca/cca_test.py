# SPDX-License-Identifier: Apache-2.0
"""The prologue of CCA: the published formulas, and mistakes that show."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ops
from ops.cca import reference
from tests.support.ops.cca_inputs import arguments

HEADS, KV_HEADS, C, R = 4, 2, 4, 2


def _parameters(rng):
  groups = HEADS + KV_HEADS
  draw = lambda *shape: rng.standard_normal(shape)
  return (
    draw(2, groups * C),
    draw(groups * C),
    draw(2, groups, C, C),
    draw(groups * C),
  )


def _convolutions(z_LZ, depthwise, depthwise_bias, grouped, grouped_bias):
  """Both, one after the other, of one document, in loops."""
  z = np.concatenate([np.zeros((2, z_LZ.shape[1])), z_LZ])
  u = z[:-1] * depthwise[0] + z[1:] * depthwise[1] + depthwise_bias
  u = u.reshape(len(u), -1, C)
  y = sum(
    np.einsum('LGC,GCX->LGX', u[j : len(u) - 1 + j], grouped[j]) for j in (0, 1)
  )
  return y.reshape(len(z_LZ), -1) + grouped_bias


def _document(z_LZ, current, delayed, parameters, temperature, angle):
  """Queries, keys and values of one document."""
  y = _convolutions(z_LZ, *parameters).reshape(len(z_LZ), -1, C)
  z = z_LZ.reshape(y.shape)
  of_key = np.arange(HEADS) // (HEADS // KV_HEADS)
  mean_q = (z[:, :HEADS] + z[:, HEADS + of_key]) / 2
  mean_k = np.stack(
    [mean_q[:, of_key == j].mean(1) for j in range(KV_HEADS)], 1
  )
  x = y + np.concatenate([mean_q, mean_k], 1)
  x *= C**0.5 / np.linalg.norm(x, axis=-1, keepdims=True)
  x[:, HEADS:] *= temperature[:, None]
  turned = (x[..., 0] + 1j * x[..., 1]) * np.exp(1j * angle)[:, None]
  x[..., 0], x[..., 1] = turned.real, turned.imag
  past = np.concatenate([np.zeros_like(delayed[:1]), delayed[:-1]])
  v = np.concatenate([current, past], -1).reshape(len(z), KV_HEADS, C)
  return x[:, :HEADS], x[:, HEADS:], v


def test_is_the_formula_of_the_paper():
  rng = np.random.default_rng(0)
  parameters = _parameters(rng)
  temperature = rng.standard_normal(KV_HEADS)
  segments = np.array([1] * 5 + [2] + [3] * 4 + [0] * 2)
  length, width = len(segments), KV_HEADS * C // 2
  z = rng.standard_normal((length, (HEADS + KV_HEADS) * C))
  values = rng.standard_normal((2, length, width))
  angle = rng.standard_normal(length)
  table = np.stack([angle, angle], -1)[None]
  arrays = [np.concatenate([z, *values], axis=-1)[None]]
  kernel = reference.joint_kernel(*(np.float32(p) for p in parameters))
  rest = (temperature, np.cos(table), np.sin(table), segments[None])
  to_jax = lambda a: jnp.asarray(a, jnp.float32 if a.dtype == float else None)
  found = jax.jit(ops.cca_prologue)(
    *map(to_jax, arrays), *kernel, *map(to_jax, rest)
  )
  for document in (1, 2, 3, 0):
    here = segments == document
    wanted = _document(
      z[here], *values[:, here], parameters, temperature, angle[here]
    )
    for got, want in zip(found, wanted, strict=True):
      np.testing.assert_allclose(got[0, here], want, rtol=1e-4, atol=2e-5)


def test_heads_that_do_not_fit_are_refused():
  projected, kernel, *rest = arguments()
  with pytest.raises(ValueError, match='do not fit'):
    ops.cca_prologue(projected, kernel[:-1], *rest)


def test_the_tables_have_no_gradient():
  args = arguments('odd')

  def total(cos):
    args[4] = cos
    return sum(jnp.sum(x) for x in ops.cca_prologue(*args))

  assert not np.any(jax.jit(jax.grad(total))(args[4]))
