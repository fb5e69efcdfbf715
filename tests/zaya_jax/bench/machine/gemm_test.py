# SPDX-License-Identifier: Apache-2.0
"""Products of matrices: shapes, FLOPs, wrong results."""

import jax.numpy as jnp
import pytest

from zaya_jax import config as config_lib
from zaya_jax.bench.machine import gemm
from zaya_jax.bench.sweep import frame as frame_lib

MODEL = config_lib.ModelConfig(
  d_model=32, num_heads=4, num_kv_heads=2, head_dim=8, num_experts=4,
  d_expert=16, d_router=8, vocab_size=64,
)  # fmt: skip
CONFIG = config_lib.Config(
  mode='bench',
  model=MODEL,
  data=config_lib.DataConfig(batch_size=2, seq_len=128),
)


def test_shapes_are_a_grid_and_those_of_the_model():
  found = gemm.products(CONFIG)
  assert found['128x512x128 bfloat16'] == (1, 128, 512, 128)
  assert found['attn/q 256x32x32 bfloat16'] == (1, 256, 32, 32)
  assert found['experts/gate_up 64x32x32 bfloat16'] == (4, 64, 32, 32)
  assert found['experts/down 64x32x16 bfloat16'] == (4, 64, 32, 16)
  assert found['head 256x64x32 bfloat16'] == (1, 256, 64, 32)
  assert len(found) == 8 + 7


def test_flops_of_a_product():
  assert gemm.flops((4, 64, 32, 16)) == 2 * 4 * 64 * 32 * 16


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_right_product_is_timed(dtype):
  found = gemm.measure('x', (2, 16, 32, 64), jnp.dtype(dtype), repeats=1)
  assert found.seconds > 0


def test_wrong_product_is_noticed(monkeypatch):
  matmul = jnp.matmul

  def broken(a, b):
    return matmul(a, b).at[:, 3].multiply(-1)

  monkeypatch.setattr(jnp, 'matmul', broken)
  with pytest.raises(frame_lib.WrongError, match='product x is wrong'):
    gemm.measure('x', (1, 16, 32, 64), jnp.dtype('float32'), repeats=1)


def test_run_measures_what_is_wanted():
  wanted = ('head 256x64x32 bfloat16', 'attn/k 256x16x32 bfloat16')
  frame = frame_lib.Frame(minutes=10, repeats=1, cases=wanted)
  gemm.run(frame, CONFIG)
  assert {p.case for p in frame.points} == set(wanted)
  for point in frame.points:
    assert point.rate * point.seconds == pytest.approx(point.size)
