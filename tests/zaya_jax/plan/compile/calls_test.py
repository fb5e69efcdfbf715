# SPDX-License-Identifier: Apache-2.0
"""Kernels that a traced step calls, beside those that its program runs."""

import jax
import jax.numpy as jnp
import pytest

import ops
from ops import dispatch
from zaya_jax.plan.compile import calls, hlo

KERNELS = {
  'triton attention_forward': {'launches': 3, 'sites': 1},
  'zaya_ops experts_up': {'launches': 6, 'sites': 2},
  '__cublas$lt$matmul': {'launches': 10, 'sites': 2},
  '__cublas$lt$groupedMatmul': {'launches': 4, 'sites': 1},
  'fusion': {'launches': 99, 'sites': 9},
}
ASKED = {
  'triton attention_forward': 3,
  'zaya_ops experts_up': 6,
  calls.PRODUCTS: 11,
  calls.GROUPED: 4,
}


def _asked(platform):
  """Of three layers that attend, with gradients, and one product."""

  def run(x, w):
    layer = lambda x, _: (ops.attention(x, x, x), None)
    layer = jax.checkpoint(layer)
    loss = lambda x: jnp.sum(jax.lax.scan(layer, x, length=3)[0] @ w)
    return jax.value_and_grad(loss)(x)

  x = jax.ShapeDtypeStruct((1, 256, 2, 128), jnp.bfloat16)
  w = jax.ShapeDtypeStruct((128, 1), jnp.bfloat16)
  with dispatch.compile_for(platform):
    return calls.asked(jax.jit(run).trace(x, w).jaxpr)


def test_calls_are_counted_as_often_as_loops_run():
  found = _asked('rocm')
  # Forward, and once more where the layer is computed again.
  assert found['triton attention_forward'] == 6
  assert found['triton attention_of_keys'] == 3
  assert found['triton attention_of_queries'] == 3
  assert not any(name.startswith('triton') for name in _asked('cpu'))


@pytest.mark.parametrize('runs, good', [(2, True), (3, True), (4, False)])
def test_one_kernel_may_run_half_as_often_again(runs, good):
  name = 'triton cca_forward'
  kernels = {**KERNELS, name: {'launches': runs, 'sites': 1}}
  (found,) = calls.check({'kernels': kernels, 'asked': {**ASKED, name: 2}})[:1]
  assert found.good is good
  assert found.value == '25 of 26 calls' if runs == 2 else name in found.value


def test_a_step_that_runs_what_it_asks_for_is_good():
  found = calls.check({'kernels': KERNELS, 'asked': ASKED})
  assert all(rule.good for rule in found)
  assert found[0].value == '23 of 24 calls'


@pytest.mark.parametrize(
  'name, told',
  [
    ('triton attention_forward', 'triton attention_forward 6 for 3'),
    ('zaya_ops experts_up', 'zaya_ops experts_up 12 for 6'),
    ('__cublas$lt$matmul', 'products 20 for 11'),
  ],
)
def test_what_runs_twice_is_told(name, told):
  twice = {**KERNELS[name], 'launches': 2 * KERNELS[name]['launches']}
  rule, *_ = calls.check({'kernels': {**KERNELS, name: twice}, 'asked': ASKED})
  assert not rule.good and rule.value == told


def test_grouped_products_that_are_others_are_told():
  dense = {**KERNELS}
  dense.pop('__cublas$lt$groupedMatmul')
  *_, rule = calls.check({'kernels': dense, 'asked': ASKED})
  assert not rule.good and rule.value == '0 of 4'
  assert len(calls.check({'kernels': KERNELS, 'asked': {}})) == 1


def test_operations_that_are_no_kernels_are_told():
  chosen = [('attention', 'triton'), ('experts', 'hip'), ('router', 'xla')]
  rule = calls.engines(chosen)
  assert rule.good and rule.value == 'attention triton, experts hip'
  rule = calls.engines([*chosen, ('cca', 'xla')])
  assert not rule.good and rule.value == 'cca xla'


def test_kernels_in_triton_have_their_names():
  text = """ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %c = f32[8]{0} custom-call(%p), \
custom_call_target="__gpu$xla.gpu.triton", \
metadata={op_name="jit(step)/while/body/cca_prologue/cca_forward/pallas_call"}
}
"""
  assert hlo.read(text)['kernels'] == {
    'triton cca_forward': {'launches': 1, 'sites': 1}
  }
