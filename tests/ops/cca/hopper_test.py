# SPDX-License-Identifier: Apache-2.0
"""CCA's prologue for Hopper GPUs: interpreted where jax can, else lowered.

jax 0.10 interprets no transposed operands. The kernels are compared with
float64 in `contract_test` where there is a Hopper GPU.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.pallas.mosaic.interpret import utils
from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks
from jax.experimental.pallas import mosaic_gpu as plgpu

from ops.cca import hopper, reference, triton
from ops.cca.hopper import runs as runs_lib
from ops.cca.hopper import shared
from ops.hopper import warp_groups
from tests.support import gpus
from tests.support.ops import interpreter, plain_cca

HEADS, KV_HEADS = 2, 1


@pytest.fixture
def interpreted(monkeypatch):
  """Kernels run in Python: threads, barriers, copies and all, without races."""
  # Interpreted memory has no bytes: both views of it are the same.
  monkeypatch.setattr(shared, 'stages', _stages)
  monkeypatch.setattr(shared, 'views', lambda memory: (memory, memory))
  _pad_before(monkeypatch)
  # Programs with several blocks each, and some with one.
  monkeypatch.setattr(hopper, 'processors', lambda: 4)
  monkeypatch.setattr(triton, 'unnormalize', plain_cca.unnormalize)
  monkeypatch.setattr(triton, 'of_values', plain_cca.of_values)
  with interpreter.interpreted():
    yield
  interpreter.assert_no_races()


def _stages(count, channels, dtype):
  shape = count, channels // shared.CHUNK, shared.ROWS, shared.CHUNK
  return plgpu.SMEM(shape, dtype)


def _pad_before(monkeypatch):
  """Copies from before an array find zeros there, which jax forgets."""
  clip = utils.clip_range_to_shape

  def clip_starts(where, shape):
    starts = [
      slice(max(0, x.start), x.stop, x.step) if isinstance(x, slice) else x
      for x in where
    ]
    return clip(tuple(starts), shape)

  def pad(value, shape, dtype, where):
    padded = np.zeros(shape, dtype)
    if value is not None:
      sides = zip(where, value.shape, strict=True)
      inside = [slice(max(0, -x.start), n - min(0, x.start)) for x, n in sides]
      padded[tuple(inside)] = value
    return padded

  copy = gpu_callbacks.AsyncCopyGmemToSmemTask
  where = property(
    lambda task: [x for x in task.src_access.range if isinstance(x, slice)]
  )
  monkeypatch.setattr(copy, 'out_of_bounds_source_fill', where)
  monkeypatch.setattr(gpu_callbacks, '_pad_to_requested', pad)
  monkeypatch.setattr(utils, 'clip_range_to_shape', clip_starts)


def _inputs(batch, length, segments, lags=3, channels=128):
  rng = np.random.default_rng(1)
  draw = lambda *s: rng.standard_normal(s).astype(np.float32)
  groups = HEADS + KV_HEADS
  half = lambda *s: jnp.asarray(draw(batch, length, *s), jnp.bfloat16)
  angle = np.tile(draw(batch, length, channels // 4), 2)
  if segments is not None:
    segments = jnp.asarray(
      np.broadcast_to(segments, (batch, length)), jnp.int32
    )
  inputs = (
    half((groups + KV_HEADS) * channels),
    # What products take.
    (draw(groups, channels, lags * channels) / channels**0.5).astype(
      jnp.bfloat16
    ),
    *(draw(groups * channels), 1 + draw(KV_HEADS)),
    *(np.cos(angle), np.sin(angle), segments, None),
  )
  inputs = [None if x is None else jnp.asarray(x) for x in inputs]
  return inputs[0], inputs[1].astype(jnp.float32), *inputs[2:]


def _value_and_gradients(run, inputs):
  out, vjp = jax.vjp(lambda *chosen: run(*chosen, *inputs[4:]), *inputs[:4])
  rng = np.random.default_rng(1)
  draw = lambda x: jnp.asarray(rng.standard_normal(x.shape), jnp.bfloat16)
  given = [draw(x).astype(x.dtype) for x in out]
  return *out, *vjp(tuple(given))


@jax.jit
def _wanted(*inputs):
  wide = lambda x: x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x
  inputs = jax.tree.map(wide, inputs)
  return _value_and_gradients(reference.cca_prologue, inputs)


def _errors(found, wanted):
  return [
    np.abs(np.asarray(a, np.float32) - np.asarray(b, np.float32)).max()
    / np.abs(np.asarray(b, np.float32)).max()
    for a, b in zip(found, wanted, strict=True)
  ]


def _documents(length, *starts):
  return np.isin(np.arange(length), starts).cumsum()[None]


# Sequences, tokens, segments: two blocks in all.
CASES = {
  'causal': (2, 128, None),
  'documents': (1, 256, _documents(256, 60, 61, 128, 191)),
  'a_rest_where_numbers_come_again': (1, 140, np.arange(140)[None] // 2 % 2),
}


@interpreter.needs_transposes
@pytest.mark.parametrize(
  ('name', 'channels'), [*((n, 128) for n in CASES), ('documents', 64)]
)
def test_value_and_gradients_interpreted(interpreted, name, channels):
  batch, length, segments = CASES[name]
  inputs = _inputs(batch, length, segments, channels=channels)
  found = _value_and_gradients(hopper.cca_prologue, inputs)
  assert max(_errors(found, _wanted(*inputs))) < 0.01
  # One token more does not see those before it.
  segments = np.zeros((1, length)) if segments is None else segments.copy()
  segments[:, 100:] += 1
  other = _inputs(batch, length, segments, channels=channels)
  other = _errors(found, _wanted(*other))
  del other[-1]  # One number: the temperature's gradient may stay as it was.
  assert min(other) > 0.01


@pytest.mark.parametrize(
  ('name', 'lags', 'channels'),
  [
    ('causal', 2, 128),
    ('causal', 3, 128),
    ('documents', 3, 128),
    ('documents', 2, 64),
    ('causal', 3, 64),
  ],
)
def test_value_and_gradients_lower(monkeypatch, name, lags, channels):
  monkeypatch.setattr(triton, 'unnormalize', plain_cca.unnormalize)
  monkeypatch.setattr(triton, 'of_values', plain_cca.of_values)
  inputs = _inputs(*CASES[name], lags=lags, channels=channels)
  run = lambda *inputs: _value_and_gradients(hopper.cca_prologue, inputs)
  lowered = gpus.lower(jax.jit(run).trace(*inputs), 'cuda')
  for kernel in ('forward', 'of_inputs', 'of_kernel'):
    assert f'cca_{kernel}' in lowered.as_text()


@pytest.mark.parametrize(
  ('heads', 'kv_heads', 'blocks', 'processors'),
  [(8, 2, 128, 132), (2, 1, 2, 4), (4, 4, 1, 132), (16, 2, 5, 8)],
)
def test_runs_have_every_block_of_every_head_once(
  heads, kv_heads, blocks, processors
):
  runs = runs_lib.schedule(heads, kv_heads, blocks, 3, processors)
  assert len(runs) <= max(processors, heads + kv_heads)
  found = [
    (run.head, block)
    for run in map(runs_lib.Run._make, runs)
    for block in range(run.first, run.stop)
  ]
  assert (runs[:, 1] < runs[:, 2]).all()
  assert sorted(found) == [
    (head, block) for head in range(heads + kv_heads) for block in range(blocks)
  ]


def test_runs_of_keys_are_shorter_as_each_block_takes_longer():
  runs = runs_lib.schedule(8, 2, 128, 3, 132)
  blocks, is_key = runs[:, 2] - runs[:, 1], runs[:, 0] >= 8
  assert max(blocks[~is_key]) * (3 + 1) == 48
  assert max(blocks[is_key]) * (3 + 4) == 42


@pytest.mark.parametrize(
  ('change', 'reason'),
  [
    ({'dtype': jnp.float32}, 'not float32'),
    ({'rotated': 128}, 'not 128 and 128'),
    ({'lags': 4}, 'not 4'),
    ({'length': 0}, 'no tokens'),
  ],
)
def test_what_it_cannot_take_is_said(monkeypatch, change, reason):
  monkeypatch.setattr(warp_groups, 'unavailable', lambda: None)

  def why_not(dtype=jnp.bfloat16, rotated=64, lags=3, length=5):
    projected, kernel = (
      jnp.zeros((1, length, 512), dtype),
      jnp.zeros((3, 128, lags * 128)),
    )
    table = jnp.zeros((1, length, rotated))
    return hopper.unsupported(projected, kernel, None, None, table, table)

  assert why_not() is None
  assert reason in why_not(**change)
