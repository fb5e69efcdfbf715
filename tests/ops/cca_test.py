# SPDX-License-Identifier: Apache-2.0
"""The prologue of CCA: the published formulas, and mistakes that show."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ops
from ops import dispatch
from ops.cca import api, cases, reference, triton
from ops.cca.triton import kernels

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
  arrays = (z[None], *values[:, None])
  kernel = reference.joint_kernel(*(np.float32(p) for p in parameters))
  rest = (temperature, np.cos(table), np.sin(table), segments[None])
  to_jax = lambda a: jnp.asarray(a, jnp.float32 if a.dtype == float else None)
  found = ops.cca_prologue(*map(to_jax, arrays), *kernel, *map(to_jax, rest))
  for document in (1, 2, 3, 0):
    here = segments == document
    wanted = _document(
      z[here], *values[:, here], parameters, temperature, angle[here]
    )
    for got, want in zip(found, wanted, strict=True):
      np.testing.assert_allclose(got[0, here], want, rtol=1e-4, atol=2e-5)


def _arguments(name='small'):
  case = next(c for c in cases.CASES if c.name == name)
  args, _ = case.arguments(np.random.default_rng(0), np.dtype('float32'))
  return [None if a is None else jnp.asarray(a) for a in args]


def _error(found, wanted):
  """Of queries, keys and values: the largest, over the largest value."""
  return [
    np.abs(a - b).max() / np.abs(b).max()
    for a, b in zip(found, wanted, strict=True)
  ]


def test_heads_that_do_not_fit_are_refused():
  z, current, delayed, kernel, *rest = _arguments()
  with pytest.raises(ValueError, match='do not fit'):
    ops.cca_prologue(z, current, delayed, kernel[:-1], *rest)


def test_the_tables_have_no_gradient():
  args = _arguments('odd')

  def total(cos):
    args[6] = cos
    return sum(jnp.sum(x) for x in ops.cca_prologue(*args))

  assert not np.any(jax.grad(total)(args[6]))


@pytest.mark.parametrize(
  ('name', 'reason'),
  [('no_rotation', 'nothing is rotated'), ('odd', 'powers of two')],
)
def test_triton_says_what_it_cannot_take(name, reason):
  assert reason in triton.unsupported(*_arguments(name))


def test_parts_too_small_for_a_matrix_product_are_refused_on_gpus():
  args = _arguments('short')  # 16 channels, 8 of them rotated.
  assert triton.unsupported(*args) is None
  with dispatch.compile_for('rocm'):
    assert 'at least 16' in triton.unsupported(*args)
  with dispatch.compile_for('cuda'):
    assert 'float32' in triton.unsupported(*args)


def no_segments(monkeypatch):
  init = kernels._Block.__init__
  monkeypatch.setattr(
    kernels._Block,
    '__init__',
    lambda self, sizes, segments, index: init(self, sizes, (), index),
  )


def no_halo(monkeypatch):
  """What lies before the block is taken for zero."""
  mask = kernels._Block.mask

  def mutant(self, lag=None):
    inside = jnp.arange(self._sizes.block) >= (0 if lag is None else lag)
    return mask(self, lag) & inside

  monkeypatch.setattr(kernels._Block, 'mask', mutant)


def halo_of_the_future(monkeypatch):
  place = kernels._Block._place
  monkeypatch.setattr(
    kernels._Block,
    '_place',
    lambda self, ref, first, size, mask, lag: place(
      self, ref, first, size, mask, -lag
    ),
  )


def rotate_the_other_way(monkeypatch):
  rotate = kernels._rotate
  monkeypatch.setattr(
    kernels, '_rotate', lambda *args: rotate(*args[:-1], -args[-1])
  )


def swap_the_halves(monkeypatch):
  rotate = kernels._rotate

  def mutant(sizes, block, cos, sin, parts, sign):
    right, left, *rest = rotate(
      sizes, block, cos, sin, [parts[1], parts[0], *parts[2:]], sign
    )
    return [left, right, *rest]

  monkeypatch.setattr(kernels, '_rotate', mutant)


def no_mean(monkeypatch):
  monkeypatch.setattr(kernels, '_add_partners', lambda *args: args[-1])


@pytest.mark.parametrize(
  'mistake',
  [
    None,
    no_segments,
    no_halo,
    halo_of_the_future,
    rotate_the_other_way,
    swap_the_halves,
    no_mean,
  ],
)
def test_mistakes_of_the_kernel_show(mistake, monkeypatch):
  args = _arguments()
  wanted = ops.cca_prologue(*args)
  if mistake:
    mistake(monkeypatch)
  with dispatch.use(cca='triton'):
    found = ops.cca_prologue(*args)
  queries, keys, values = _error(found, wanted)
  assert values == 0
  assert (min(queries, keys) > 0.05) if mistake else max(queries, keys) < 1e-5


def lose_a_part(monkeypatch):
  """Of the sums over blocks."""
  total = jnp.sum
  monkeypatch.setattr(
    api.jnp,
    'sum',
    lambda a, axis=None, **kw: (
      a[0] if axis == 0 and a.ndim > 2 else total(a, axis, **kw)
    ),
  )


@pytest.mark.parametrize(
  ('mistake', 'index'), [(no_segments, 0), (no_mean, 0), (lose_a_part, 3)]
)
def test_mistakes_on_the_way_back_show(mistake, index, monkeypatch):
  args = _arguments()

  def gradient(x):
    out = lambda x: ops.cca_prologue(*args[:index], x, *args[index + 1 :])
    return jax.vjp(out, x)[1](tuple(map(jnp.cos, wanted)))[0]

  wanted = ops.cca_prologue(*args)
  right = gradient(args[index])
  with dispatch.use(cca='triton'):
    found = [gradient(args[index])]
    mistake(monkeypatch)
    found.append(gradient(args[index]))
  (small,), (large,) = (_error([x], [right]) for x in found)
  assert small < 1e-5 and large > 0.01
