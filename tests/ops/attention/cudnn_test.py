# SPDX-License-Identifier: Apache-2.0
"""Attention by cuDNN: what it is called for, and what it does not take."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as fused

import ops
from ops import dispatch
from ops.attention import cases, cudnn, reference
from tests.support import close, gpus
from tests.support.ops.attention_inputs import both, draw, gradients

ON_GPU = jax.default_backend() == 'gpu'
needs_nvidia = pytest.mark.skipif(
  not ON_GPU or dispatch.platform() != 'cuda',
  reason='needs an NVIDIA GPU and pytest --noconftest',
)


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
