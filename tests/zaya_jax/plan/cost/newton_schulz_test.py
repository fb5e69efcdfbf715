# SPDX-License-Identifier: Apache-2.0
"""The cost of Muon against hand arithmetic and against XLA's own count."""

import jax
import jax.numpy as jnp
import pytest

import ops
from tests.support import released
from zaya_jax.plan.cost import division, newton_schulz


def _stack(m, n, count, devices=1):
  return newton_schulz.Stack(
    m=m, n=n, count=count, local=count, axes=(), devices=devices, whole=False
  )


def _stacks(*words):
  config = released.parse(*words)
  shape = division.make(config)
  found = newton_schulz.stacks(config, shape, division.leaves(config, shape))
  return {(s.m, s.n): s for s in found}, found


def test_released_model_takes_444_teraflop_a_step():
  found, stacks = _stacks('--plan.devices=1')
  shapes = {shape: stack.count for shape, stack in found.items()}
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
  total = newton_schulz.flops(stacks, 5)
  assert total == experts + attention + router
  assert total == pytest.approx(444e12, rel=2e-3)
  half = newton_schulz.flops(stacks, 5, symmetric=True)
  assert half == pytest.approx(306e12, rel=2e-3)


@pytest.mark.parametrize('shape', [(8, 24), (24, 8), (16, 16)])
def test_xla_counts_the_same(shape):
  x = jax.ShapeDtypeStruct((3, *shape), jnp.float32)
  # XLA counts the body of the loop once.
  run = jax.jit(lambda x: ops.newton_schulz(x, steps=1))
  counted = run.lower(x).compile().cost_analysis()['flops']
  formula = newton_schulz.flops([_stack(*sorted(shape), 3)], 1)
  elementwise = 10 * 3 * (shape[0] * shape[1] + 2 * min(shape) ** 2)
  assert formula < counted < formula + elementwise


def test_busiest_device_has_whole_matrices():
  one = newton_schulz.flops([_stack(4, 8, 1)], 5)
  assert newton_schulz.busiest([_stack(4, 8, 9, devices=8)], 5) == 2 * one
  assert newton_schulz.busiest([_stack(4, 8, 8, devices=8)], 5) == one


def test_matrices_are_shared_by_the_devices_that_hold_parts_of_them():
  found, _ = _stacks(
    '--plan.devices=64', '--mesh.fsdp=2', '--mesh.expert=4', '--mesh.context=2'
  )
  experts, router = found[2048, 4096], found[17, 256]
  # Of 640 matrices 160 belong to a device's part of the experts.
  assert set(experts.axes) == {'replica', 'fsdp', 'context'}
  assert (experts.count, experts.local, experts.devices) == (640, 160, 16)
  assert experts.each == 10 and experts.sent == 10 * 2048 * 4096
  # 256 rows are divided by all 64 devices.
  assert (router.devices, router.whole) == (64, False)
  found, _ = _stacks('--plan.devices=1024')
  # 1,024 devices divide none of its sides: each has all of its momentum.
  assert found[17, 256].whole and found[17, 256].sent == 1024 * 17 * 256


def test_wide_matrices_are_turned_and_go_with_tall_ones():
  config = released.parse('--plan.devices=2')
  leaf = dict(
    muon=True, held=(), cut=('replica',), copied=(), shards=1, parts=2
  )
  leaves = [
    division.Leaf(name='wide', shape=(3, 8, 16), dim=2, **leaf),
    division.Leaf(name='tall', shape=(5, 16, 8), dim=1, **leaf),
    division.Leaf(name='other', shape=(7, 16, 8), dim=2, **leaf),
  ]
  found = newton_schulz.stacks(config, division.make(config), leaves)
  assert [stack.count for stack in found] == [3 + 5, 7]


def test_gate_and_up_may_be_orthogonalized_apart():
  found, _ = _stacks('--plan.devices=8', '--optim.muon_split_gate_up=true')
  assert (2048, 4096) not in found and found[2048, 2048].count == 3 * 640
