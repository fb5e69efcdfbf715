# SPDX-License-Identifier: Apache-2.0
"""The GPU engines of attention: what they skip, refuse, and compile to."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as fused

import ops
from ops import dispatch
from ops.attention import cases, cudnn, ranges, reference, triton
from ops.attention.triton import kernels
from tests.support import close, gpus

ON_GPU = jax.default_backend() == 'gpu'
needs_nvidia = pytest.mark.skipif(
  not ON_GPU or dispatch.platform() != 'cuda',
  reason='needs an NVIDIA GPU and pytest --noconftest',
)
ROWS = 96
SEGMENTS = {
  'none': None,
  'documents': cases.documents(30, 1, 33, 32),
  'two_rows': np.repeat([[7, 3, 9], [1, 1, 2]], 32, axis=1),
  'come_again': np.arange(ROWS)[None] // 10 % 3,
}


def draw(length, heads=(4, 2), channels=16, dtype=jnp.float32, batch=1):
  rng = np.random.default_rng(0)
  shapes = [(batch, length, heads[i], channels) for i in (0, 1, 1, 0)]
  return [jnp.asarray(rng.standard_normal(s), dtype) for s in shapes]


def gradients(function, q, k, v, d_out):
  out, vjp = jax.vjp(function, q, k, v)
  return out, vjp(d_out)


def both(segments):
  return {'q_segments_BL': segments, 'k_segments_BS': segments}


# --- What our kernel looks at ------------------------------------------------


@pytest.mark.parametrize('window', [None, 1, 20, 2**31 - 1])
@pytest.mark.parametrize('name', SEGMENTS)
def test_ranges_leave_out_nothing_visible(name, window):
  segments = SEGMENTS[name]
  given = (None, None) if segments is None else (segments, segments)
  visible = np.asarray(reference.visible_keys(ROWS, ROWS, *given, 0, window))
  pairs = visible.reshape(len(visible), 6, 16, 3, 32)
  both_ways = (pairs, pairs.transpose(0, 3, 4, 1, 2))
  found = ranges.ranges(ROWS, 16, 32, *given, window)
  for ends, pairs in zip(found, both_ways, strict=True):
    some, every = pairs.any((2, 4)), pairs.all((2, 4))
    start, full_start, full_stop, stop = np.moveaxis(np.asarray(ends), -1, 0)
    assert (start <= full_start).all() and (full_start <= full_stop).all()
    assert (full_stop <= stop).all()
    block = np.arange(some.shape[-1])
    inside = (block >= start[..., None]) & (block < stop[..., None])
    assert not (some & ~inside).any()
    full = (block >= full_start[..., None]) & (block < full_stop[..., None])
    assert not (full & ~every).any()
    if name in ('none', 'documents', 'two_rows'):  # And nothing else.
      assert (inside == some).all()


RANGES = ranges.ranges


def wrong_ranges(*args, change):
  return tuple(change(ends) for ends in RANGES(*args))


def without_segments(self, scores, rows):
  self._extras = {n: a for n, a in self._extras.items() if n == 'window'}
  return MASK(self, scores, rows)


MASK = kernels.Program.mask
MUTANTS = {
  'last_block_left_out': (
    (ranges, 'ranges'),
    functools.partial(wrong_ranges, change=lambda e: e - (e == e[..., 3:])),
  ),
  'all_taken_as_visible': (
    (ranges, 'ranges'),
    functools.partial(
      wrong_ranges, change=lambda e: e.at[..., 1].set(e[..., 0])
    ),
  ),
  'segments_not_masked': ((kernels.Program, 'mask'), without_segments),
  'scores_not_masked': (
    (kernels.Program, 'mask'),
    lambda _, scores, rows: scores,
  ),
}


@pytest.mark.parametrize('name', [None, *MUTANTS])
def test_mutants_of_the_kernel_are_caught(name, monkeypatch):
  if name:
    monkeypatch.setattr(*MUTANTS[name][0], MUTANTS[name][1])
  given = draw(ROWS, (2, 1))
  options = both(SEGMENTS['documents'])
  found, expected = (
    gradients(functools.partial(engine.attention, **options), *given)
    for engine in (triton, reference)
  )
  error = max(
    np.abs(np.nan_to_num(a, nan=1e9) - b).max()
    for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True)
  )
  assert (error > 1e-2) if name else (error < 1e-4)


@pytest.mark.parametrize('platform', ['cuda', 'rocm'])
def test_kernel_lowers_for_gpus(platform):
  given = [
    jax.ShapeDtypeStruct(a.shape, jnp.bfloat16)
    for a in draw(256, (8, 2), 128, jnp.bfloat16)
  ]
  segments = jax.ShapeDtypeStruct((1, 256), jnp.int32)

  def run(q, k, v, d_out, segments, window):
    attend = functools.partial(ops.attention, **both(segments), window=window)
    return gradients(attend, q, k, v, d_out)

  with dispatch.compile_for(platform), dispatch.use(attention='triton'):
    traced = jax.jit(run).trace(*given, segments, jnp.int32(100))
    text = gpus.lower(traced, platform).as_text()
  for kernel in (
    'attention_forward',
    'attention_of_keys',
    'attention_of_queries',
  ):
    assert kernel in text


@pytest.mark.parametrize(
  'heads, channels, dtypes, reason',
  [
    ((2, 1), 24, 'bbb', 'no power of two'),
    ((2, 1), 8, 'bbb', 'no power of two'),
    ((2, 1), 16, 'bfb', 'differ in type'),
  ],
)
def test_kernel_says_what_it_does_not_take(heads, channels, dtypes, reason):
  kinds = {'b': jnp.bfloat16, 'f': jnp.float32}
  given = [
    a.astype(kinds[d])
    for a, d in zip(draw(8, heads, channels)[:3], dtypes, strict=True)
  ]
  assert reason in triton.unsupported(*given)
  assert 'row 0' in triton.unsupported(*draw(8)[:3], offset=1)
  assert triton.unsupported(*draw(8)[:3], offset=0) is None


# --- cuDNN -------------------------------------------------------------------


@pytest.fixture
def nvidia(monkeypatch):
  """Lowers for a Hopper with cuDNN, of which there need be none."""
  version = type('', (), {'cudnn_get_version': staticmethod(lambda: 91900)})
  monkeypatch.setattr(fused, 'cuda_versions', version)
  monkeypatch.setattr(fused, 'check_compute_capability', lambda _: True)
  with dispatch.compile_for('cuda'), dispatch.use(attention='cudnn'):
    yield


def lowered(*given, **options):
  def run(q, k, v, d_out):
    attend = functools.partial(ops.attention, **options)
    return gradients(attend, q, k, v, d_out)

  traced = jax.jit(run).trace(*given)
  return gpus.lower(traced, 'cuda').as_text()


def test_rows_without_segments_are_one_call_each_way(nvidia):
  text = lowered(*draw(64, (8, 2), 128, jnp.bfloat16), window=9)
  assert text.count('@__cudnn$fmhaSoftmax(') == 1
  assert text.count('@__cudnn$fmhaSoftmaxBackward(') == 1
  assert 'case' not in text
  assert r'sliding_window_length\22: 9' in text
  assert r'mask_type\22: \22CAUSAL' in text


def test_cudnn_says_what_it_does_not_take(nvidia):
  q, k, v = draw(8, (4, 2), 128, jnp.bfloat16)[:3]
  packed = both(jnp.ones((1, 8), jnp.int32))
  assert cudnn.unsupported(q, k, v) is None
  assert 'our own kernel' in cudnn.unsupported(q, k, v, **packed)
  assert 'window' in cudnn.unsupported(q, k, v, window=jnp.int32(3))
  assert 'row 0' in cudnn.unsupported(q, k, v, offset=3)
  wide = [a.astype(jnp.float32) for a in (q, k, v)]
  assert 'bfloat16 or float16' in cudnn.unsupported(*wide)
  assert 'not 12' in cudnn.unsupported(*(a[..., :12] for a in (q, k, v)))
  with dispatch.compile_for('rocm'):
    assert 'not for rocm' in cudnn.unsupported(q, k, v)
    with pytest.raises(dispatch.UnsupportedError, match='cudnn cannot run'):
      ops.attention(q, k, v)


@needs_nvidia
@pytest.mark.parametrize('window', [None, 300])
@pytest.mark.parametrize(
  'kind', ['none', 'one', 'documents', 'many', 'come_again']
)
def test_on_the_device(kind, window):
  """What is chosen there, compiled: cuDNN's kernel or ours."""
  rng = np.random.default_rng(0)
  row = {
    'none': np.zeros((1, 1024), int),
    'one': np.zeros((1, 1024), int),
    'documents': cases.documents(100, 1, 523, 300, 100),
    'many': np.arange(1024)[None] // 20,
    'come_again': np.arange(1024)[None] // 100 % 3,
  }[kind]
  segments = np.concatenate([row, np.sort(rng.integers(0, 9, (1, 1024)))])
  given = draw(1024, (8, 2), 128, jnp.bfloat16, batch=2)
  options = {'window': window}
  if kind != 'none':
    options |= both(jnp.asarray(segments))
  found = jax.jit(
    lambda *a: gradients(functools.partial(ops.attention, **options), *a)
  )(*given)
  exact = [a.astype(jnp.float32) for a in given]
  with jax.default_matmul_precision('highest'):
    expected = gradients(
      functools.partial(reference.attention, **options), *exact
    )
  close.assert_close(found, expected, close.BFLOAT16)
