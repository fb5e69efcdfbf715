# SPDX-License-Identifier: Apache-2.0
"""The cost of Muon against hand arithmetic and against XLA's own count."""

import jax
import jax.numpy as jnp
import pytest

import ops
from tests.zaya_jax.plan import released
from zaya_jax.plan import memory, newton_schulz


def test_released_model_takes_444_teraflop_a_step():
  shapes = memory.matrices(released.parse())
  assert shapes == {
    (2048, 4096): 640,  # gate_up of 16 experts in 40 layers
    (2048, 2048): 640,  # down
    (1024, 2048): 80,  # q, out
    (256, 2048): 80,  # k, the router's down
    (128, 2048): 80,  # v, current and delayed
    (256, 256): 80,  # the router's fc1 and fc2
    (17, 256): 40,  # the router's output
  }
  # An iteration: 4 m^2 n + 2 m^3.
  experts = 640 * 5 * 2048**2 * (4 * 4096 + 2 * 2048 + 4 * 2048 + 2 * 2048)
  attention = 80 * 5 * sum(m * m * (4 * 2048 + 2 * m) for m in (1024, 256, 128))
  router = 5 * (80 * 6 * 256**3 + 40 * 17 * 17 * (4 * 256 + 2 * 17))
  total = newton_schulz.flops(shapes, 5)
  assert total == experts + attention + router
  assert total == pytest.approx(444e12, rel=2e-3)
  half = newton_schulz.flops(shapes, 5, symmetric=True)
  assert half == pytest.approx(306e12, rel=2e-3)


@pytest.mark.parametrize('shape', [(8, 24), (24, 8), (16, 16)])
def test_xla_counts_the_same(shape):
  x = jax.ShapeDtypeStruct((3, *shape), jnp.float32)
  # XLA counts the body of the loop once.
  run = jax.jit(lambda x: ops.newton_schulz(x, steps=1))
  counted = run.lower(x).compile().cost_analysis()['flops']
  formula = newton_schulz.flops({tuple(sorted(shape)): 3}, 1)
  elementwise = 10 * 3 * (shape[0] * shape[1] + 2 * min(shape) ** 2)
  assert formula < counted < formula + elementwise


def test_busiest_device_has_whole_matrices():
  one = newton_schulz.flops({(4, 8): 1}, 5)
  assert newton_schulz.busiest({(4, 8): 9}, 5, 8) == 2 * one
  assert newton_schulz.busiest({(4, 8): 8}, 5, 8) == one
