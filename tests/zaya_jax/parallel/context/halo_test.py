# SPDX-License-Identifier: Apache-2.0
"""The convolutions and the delay of divided rows, and a whole layer of CCA."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from ops.cca import reference as cca_ops
from tests.support import quick, rows, tiny
from zaya_jax import config as config_lib
from zaya_jax.model import cca, layers
from zaya_jax.parallel.context import gather, halo, ring_attention

CONFIG = tiny.config(
  attention_bias=True, num_layers=1, sliding_window=5, sliding_layers=(0,)
)
# Devices, length, packing. Chunks of 2 tokens: all halo.
DRAWS = [
  (2, 16, 'one'),
  (2, 12, 'many'),
  (4, 16, 'many'),
  (4, 24, 'two'),
  (4, 32, 'padded'),
  (8, 32, 'many'),
  (8, 48, 'padded'),
  (8, 32, 'two'),
]


@dataclasses.dataclass(frozen=True)
class Divided:
  """What a layer asks of other devices."""

  segments: jax.Array
  mode: types.ModuleType = ring_attention

  def look_back(self, f, x_BLX, segments_BL, *here_BLX):
    return behind(f, CONFIG.conv_context, x_BLX, segments_BL, *here_BLX)

  def attention(self, q_BLHC, k_BLKC, v_BLKC, window):
    return self.mode.attention(
      q_BLHC,
      k_BLKC,
      v_BLKC,
      axis='context',
      segments_BS=self.segments,
      window=window,
    )


def behind(f, count, x_BLX, segments_BL, *here_BLX):
  before = halo.segments(segments_BL, count, axis='context')
  return halo.apply(f, x_BLX, segments_BL, before, *here_BLX, axis='context')


def convolve(module, x_BLX, segments_BL):
  return cca_ops.convolve(x_BLX, *module.joint_kernel(), segments_BL)


def delay(module, x_BLX, segments_BL):
  return cca_ops.delay(x_BLX, segments_BL, module.v_delayed_bias[...])


# With the tokens that they look back.
PARTS = {'convolve': (convolve, CONFIG.conv_context), 'delay': (delay, 1)}


@functools.cache
def module():
  """The module of its weights, and weights."""
  graph, state = nnx.split(cca.CCA(CONFIG, rngs=nnx.Rngs(0)))
  rng = np.random.default_rng(0)
  state = jax.tree.map(
    lambda a: (0.4 * rng.normal(size=a.shape)).astype(a.dtype), state
  )
  return functools.partial(nnx.merge, graph), state


def normal(seed, *shape):
  """Of NumPy: jax would compile it for each shape."""
  return np.random.default_rng(seed).standard_normal(shape, np.float32)


def value_and_gradient(f, state, x_BLX):
  """Of a fixed sum of the outputs, by weights and input."""
  out = jax.eval_shape(f, state, x_BLX)
  weights = normal(1, *out.shape)

  def loss(state, x_BLX):
    out = f(state, x_BLX)
    return jnp.sum(out * weights), out

  return jax.jit(jax.grad(loss, (0, 1), has_aux=True))(state, x_BLX)


def error(f, g, state, x_BLX):
  """The worst of `g` beside `f`, value and gradients."""
  return rows.worst(
    value_and_gradient(g, state, x_BLX), value_and_gradient(f, state, x_BLX)
  )


def part_error(name, draw):
  """Of `convolve` or `delay`."""
  n, length, packing = draw
  make, state = module()
  part, count = PARTS[name]
  segments = rows.documents(packing, length)
  width = CONFIG.d_qk if name == 'convolve' else CONFIG.head_dim
  x_BLX = normal(2, rows.B, length, width)
  divided = rows.divided(
    lambda s, x, segments: behind(
      functools.partial(part, make(s)), count, x, segments
    ),
    n,
  )
  return error(
    lambda s, x: part(make(s), x, segments),
    lambda s, x: divided(s, x, segments),
    state,
    x_BLX,
  )


@pytest.mark.parametrize('draw', quick.only(DRAWS, *DRAWS[1:5]), ids=str)
@pytest.mark.parametrize('name', ['convolve', 'delay'])
def test_equals_one_device(name, draw):
  assert part_error(name, draw) <= rows.TOLERANCE


def layer_error(mode, draw):
  n, length, packing = draw
  make, state = module()
  segments = rows.documents(packing, length)
  positions = np.tile(np.arange(length), (rows.B, 1))
  h_BLD = normal(3, rows.B, length, CONFIG.d_model)

  def context(positions, segments, divided=None):
    rope = layers.rope_table(positions, CONFIG.d_rope, CONFIG.rope_theta)
    return cca.Context(
      mask=None,
      segments=segments,
      attend_segments=segments,
      rope=(rope, rope),
      divided=divided,
    )

  divided = rows.divided(
    lambda s, h, positions, segments, all_segments: make(s)(
      h,
      context(positions, segments, Divided(all_segments, mode)),
      True,
    ),
    n,
    whole=(4,),
  )
  return error(
    lambda s, h: make(s)(h, context(positions, segments), True),
    lambda s, h: divided(s, h, positions, segments, segments),
    state,
    h_BLD,
  )


@pytest.mark.parametrize(
  'draw', quick.only((*DRAWS[2:5], DRAWS[6]), DRAWS[2]), ids=str
)
@pytest.mark.parametrize('mode', [gather, ring_attention])
def test_a_whole_layer_equals_one_device(mode, draw):
  assert layer_error(mode, draw) <= rows.TOLERANCE


def from_the_right(monkeypatch):
  permute = jax.lax.ppermute
  monkeypatch.setattr(
    jax.lax,
    'ppermute',
    lambda x, axis, pairs: permute(x, axis, [(b, a) for a, b in pairs]),
  )


def nothing_arrives(monkeypatch):
  monkeypatch.setattr(jax.lax, 'ppermute', lambda x, axis, pairs: x * 0)


def no_segments(monkeypatch):
  monkeypatch.setattr(
    halo,
    'segments',
    lambda s, n, axis: jnp.repeat(halo._chunks(s)[:, :, :1], n, axis=2),
  )


def zigzag_as_contiguous(monkeypatch):
  def mutant(x, count, *, axis):
    last = halo._chunks(x)[:, :, -count:]
    right = [(i, i + 1) for i in range(jax.lax.axis_size(axis) - 1)]
    before = jax.lax.ppermute(last[:, 1], axis, right)
    return jnp.stack([before, last[:, 0]], axis=1)

  monkeypatch.setattr(halo, 'left', mutant)


def first_token_of_the_halo_only(monkeypatch):
  left = halo.left
  monkeypatch.setattr(
    halo, 'left', lambda *args, **named: jnp.flip(left(*args, **named), axis=2)
  )


MUTANTS = (
  from_the_right,
  nothing_arrives,
  no_segments,
  zigzag_as_contiguous,
  first_token_of_the_halo_only,
)


@pytest.mark.parametrize(
  'mutant', quick.only(MUTANTS, from_the_right, zigzag_as_contiguous)
)
def test_mutant_is_noticed(mutant, monkeypatch):
  mutant(monkeypatch)
  assert part_error('convolve', (4, 24, 'many')) > 0.01


def test_messages():
  """One to the right and one to the left; backward the way back."""
  left = functools.partial(halo.left, count=2, axis='context')
  run = rows.on_devices(left, 4, (rows.CHUNKED,))
  hlo = run.lower(jnp.ones((2, 32, 3))).compile().as_text()
  assert hlo.count(' collective-permute(') == 2
  assert ' all-' not in hlo


def test_chunks_shorter_than_the_halo_are_named():
  left = functools.partial(halo.left, count=2, axis='context')
  with pytest.raises(config_lib.UsageError, match='leaves 1 tokens in a chunk'):
    rows.on_devices(left, 4, (rows.CHUNKED,))(jnp.ones((2, 8, 3)))
