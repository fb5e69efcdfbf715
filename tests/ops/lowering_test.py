# SPDX-License-Identifier: Apache-2.0
"""Every engine `triton` becomes Triton kernels at the shapes of ZAYA1-8B.

Nothing is compiled or run: this is what jax does on a machine without a GPU.
"""

import functools

import jax
import jax.numpy as jnp
import pytest

import ops
from ops import case as case_lib
from ops import dispatch, registry
from ops.attention import rows
from tests.support import gpus
from tests.support.ops import shapes


def _table():
  for name in registry.FUNCTIONS:
    operation = registry.operation(name)
    if 'triton' in (engine.name for engine in operation.engines):
      for case in operation.cases:
        # Of how tokens are divided among experts a program knows nothing.
        same = name == 'experts' and not case.name.startswith('balanced')
        if case.zaya and not same:
          yield pytest.param(operation, case, id=f'{name}-{case.name}')


def _value_and_gradients(operation, case, kwargs):
  def run(*args):
    value = functools.partial(operation.run, **kwargs)
    out, vjp = case_lib.vjp(value, case.gradients, args)
    return out, vjp(out)

  return run


@pytest.mark.parametrize('platform', ['cuda', 'rocm'])
@pytest.mark.parametrize(('operation', 'case'), [*_table()])
def test_triton_lowers_for_gpus(operation, case, platform):
  args, kwargs = shapes.of(case)
  run = _value_and_gradients(operation, case, kwargs)
  with (
    dispatch.compile_for(platform),
    dispatch.use(**{operation.name: 'triton'}),
  ):
    traced = jax.jit(run).trace(*args)
    lowered = gpus.lower(traced, platform)
  assert gpus.kernels(lowered)


@pytest.mark.parametrize('platform', ['cuda', 'rocm'])
def test_experts_of_a_prompt_lower_for_gpus(platform):
  shape = lambda *size: jax.ShapeDtypeStruct(size, jnp.bfloat16)
  choices = jax.ShapeDtypeStruct((512,), jnp.int32)
  matrices = shape(16, 4096, 2048), shape(16, 2048, 2048)
  with dispatch.compile_for(platform):
    traced = jax.jit(ops.expert_mlp_rows).trace(
      shape(512, 2048), choices, *matrices
    )
    lowered = gpus.lower(traced, platform)
  assert len(gpus.kernels(lowered)) == 2


@pytest.mark.parametrize('platform', ['cuda', 'rocm'])
def test_attention_of_divided_rows_lowers_for_gpus(platform):
  shape = lambda rows, heads: jax.ShapeDtypeStruct(
    (1, rows, heads, 128), jnp.bfloat16
  )
  places = jax.ShapeDtypeStruct((2048,), jnp.int32)

  def run(q, k, v, places):
    engine = rows.kernels(q, k, v)
    out, saved = rows.forward(engine, q, k, v, places, window=900)
    return out, rows.backward(engine, saved, out, k, v, places, window=900)

  with dispatch.compile_for(platform), dispatch.use(attention='triton'):
    traced = jax.jit(run).trace(
      shape(2048, 8), shape(4096, 2), shape(4096, 2), places
    )
    lowered = gpus.lower(traced, platform)
  assert len(gpus.kernels(lowered)) == 3
  out, (_, d_k, _) = lowered.out_info
  assert (out.dtype, d_k.dtype) == (jnp.bfloat16, jnp.float32)
