# SPDX-License-Identifier: Apache-2.0
"""What a compiled step keeps to; and for each rule a step that breaks it."""

import contextlib
import dataclasses
import functools
import os
import tempfile

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import ops
from ops.experts import api, reference
from tests.support import tiny
from zaya_jax import config as config_lib
from zaya_jax.parallel import partition, placement
from zaya_jax.plan import planner
from zaya_jax.plan.compile import calls, contracts, rocm, rocm_child
from zaya_jax.plan.cost import division
from zaya_jax.runtime import chips

ROCM = pytest.mark.skipif(
  not (rocm.ROOT / '.venv-rocm' / '.compiler').exists(),
  reason='make rocm-venv',
)


def _config(devices=8, tied=True, dtype='float32', **sizes):
  """2,048 tokens a device, which no other size is, and too many for a chunk."""
  model = tiny.config(
    num_layers=3, d_model=32, num_heads=4, head_dim=8, num_experts=6,
    d_expert=24, d_router=8, vocab_size=2**18, remat='block',
    tie_embeddings=tied, dtype=dtype,
  )  # fmt: skip
  context = sizes.get('context', 1)
  return config_lib.Config(
    model=model,
    data=config_lib.DataConfig(
      batch_size=2 * devices // context, seq_len=1024 * context
    ),
    mesh=config_lib.MeshConfig(**sizes),
    plan=config_lib.PlanConfig(devices=devices),
  )


def _compile(config):
  with _errors() as said:
    found = rocm_child.compile_step(config, jax.devices(), 'cpu')
  return {**found, 'rematerialized': said[0].count(contracts.WARNING)}


@contextlib.contextmanager
def _errors():
  """A list of what is written to stderr meanwhile, by the compiler too."""
  said, kept = [], os.dup(2)
  with tempfile.TemporaryFile('w+') as file:
    os.dup2(file.fileno(), 2)
    try:
      yield said
    finally:
      os.dup2(kept, 2)
      os.close(kept)
      file.seek(0)
      said.append(file.read())


def _broken(config, compiled):
  chip = chips.CHIPS[config.plan.chip]
  found = contracts.check(config, division.make(config), chip, compiled)
  return {f.rule.split(':')[0]: f.value for f in found if not f.good}


@pytest.fixture(scope='module')
def zero():
  return _compile(_config())


def test_zero_keeps_its_contracts(zero):
  assert not _broken(_config(), zero)


@pytest.mark.long  # `make plan-1024` compiles such a step, too.
def test_all_axes_keep_their_contracts(monkeypatch):
  """Large stacks are summed and gathered layer by layer."""
  monkeypatch.setattr(placement, 'STACK_BYTES', 2**12)
  # XLA:CPU, unlike XLA:ROCm, sums the two gradients of a tied one apart.
  config = _config(tied=False, fsdp=2, expert=2, context=2)
  compiled = _compile(config)
  assert not _broken(config, compiled)
  sums = [m for m in compiled['messages'] if m['kind'] == 'reduce-scatter']
  assert {1, 3} <= {m['calls'] for m in sums}


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _whole_sums(a, axes, dim, dtype):
  """What `partition.gather` must not do: sum all, then take a part."""
  del dtype
  return jax.lax.all_gather(a, axes, axis=dim, tiled=True)


def _take_part(axes, dim, dtype, size, grad):
  del dtype
  first = jax.lax.axis_index(axes) * size
  grad = jax.lax.psum(grad, axes)
  return (jax.lax.dynamic_slice_in_dim(grad, first, size, dim),)


_whole_sums.defvjp(
  lambda a, *how: (_whole_sums(a, *how), a.shape[how[1]]), _take_part
)


def _divided_newton_schulz(x, *, steps, **_):
  """Sums over devices in each iteration, as matrices that are cut would."""
  with jax.named_scope('newton_schulz'):
    return jax.lax.fori_loop(
      0, steps, lambda _, y: jax.lax.pmean(y @ y.mT @ y, 'replica'), x
    )


def _whole_logits(x, head, targets, weights, bias=None):
  del bias
  logits = jnp.dot(x, head.T, preferred_element_type=jnp.float32)
  nats = jax.nn.logsumexp(logits, 1) - logits[jnp.arange(len(x)), targets]
  return jnp.sum(nats * weights)


def _dense_experts(*inputs, sink=None):
  stacks = sink and sink.stacks
  return api.Made(reference.expert_mlp(*inputs), None, None, stacks)


def test_steps_that_break_a_contract_are_told(monkeypatch):
  for place, name, wrong in (
    (partition, '_gather', _whole_sums),
    (ops, 'newton_schulz', _divided_newton_schulz),
    (ops, 'linear_cross_entropy', _whole_logits),
    (ops, 'expert_mlp_in_place', _dense_experts),
  ):
    monkeypatch.setattr(place, name, wrong)
  config = _config()
  assert set(_broken(config, _compile(config))) == {
    'gradients are summed once',
    'only what nothing divides is summed whole',
    'nothing is sent within Newton-Schulz',
    'logits of all tokens are never held',
    'no array of [experts, tokens, width]',
  }


@pytest.mark.parametrize(
  'kind, rule',
  [
    ('reduce-scatter', 'gradients are summed once'),
    ('all-gather', 'parameters are gathered once'),
  ],
)
def test_sending_twice_is_told(kind, rule, zero):
  again = [m for m in zero['messages'] if m['kind'] == kind][:1]
  assert again
  twice = {**zero, 'messages': zero['messages'] + again}
  assert set(_broken(_config(), twice)) == {rule}


def test_sums_in_bfloat16_are_told(zero):
  narrow = [{**m, 'dtype': 'bf16'} for m in zero['messages']]
  assert set(_broken(_config(), {**zero, 'messages': narrow})) == {
    'gradients are summed once',
    'only what nothing divides is summed whole',
  }


def test_muon_without_its_loop_is_told(zero):
  (rule,) = _broken(_config(), {**zero, 'scopes': []})
  assert rule == 'nothing is sent within Newton-Schulz'


def test_array_that_is_gathered_whole_is_warned_of():
  device_mesh = jax.make_mesh((2, 2, 2), ('a', 'b', 'c'), (AxisType.Auto,) * 3)
  where = lambda *axes: NamedSharding(device_mesh, P(*axes))

  def step(x):
    x = jax.lax.with_sharding_constraint(jnp.sin(x), where('a', 'b', 'c'))
    x = jnp.cos(x)
    return jax.lax.with_sharding_constraint(x, where(('a', 'b', 'c')))

  x = jax.ShapeDtypeStruct((8, 8, 8), jnp.float32)
  with _errors() as said:
    jax.jit(step).lower(x).compile()
  assert said[0].count(contracts.WARNING) == 1


def test_step_that_does_not_fit_is_told(zero):
  full = {**zero, 'temporary': 192e9, 'rematerialized': 1}
  assert set(_broken(_config(), full)) == {
    'peak below 192 GB',
    'nothing is gathered whole to be divided anew',
  }


def _message(**changes):
  return {
    'kind': 'collective-permute', 'calls': 40, 'bytes': 2**30,
    'elements': 2**29, 'dtype': 'bf16', 'group': 4, 'scope': 'jvp()/while',
    'loops': [40], 'hidden': True, **changes,
  }  # fmt: skip


@pytest.mark.parametrize('hidden, told', [(True, False), (False, True)])
def test_ring_that_waits_is_told(hidden, told, zero):
  config = _config(context=4, context_mode='ring')
  halo = _message(bytes=2**10, hidden=False)
  sent = [_message(), halo, _message(hidden=hidden)]
  broken = _broken(config, {**zero, 'messages': sent})
  assert ('the ring sends while it computes' in broken) == told


@pytest.mark.parametrize('late, good', [(15, True), (16, False)])
def test_bytes_that_nothing_hides_are_limited(late, good):
  compiled = {
    'collectives': {
      'all-gather': {'bytes': 60e9}, 'reduce-scatter': {'bytes': 40e9},
    },
    'exposed': {'all-gather': 1e9, 'reduce-scatter': (late - 1) * 1e9},
  }  # fmt: skip
  found = contracts.exposed(compiled, 0.15)
  assert found.good == good
  assert found.value.startswith(f'{late}.00 of 100.00 GB, {late}.0%: all-ga')


@pytest.mark.long
@ROCM
def test_rocm_hides_the_ring():
  config = _config(context=4, context_mode='ring')
  assert not _broken(config, rocm.compile_step(config))


@pytest.mark.long
@ROCM
def test_rocm_makes_grouped_products_of_ragged_ones():
  config = _config(dtype='bfloat16')
  config = dataclasses.replace(
    config,
    ops=config_lib.OpsConfig(experts='ragged'),
    model=dataclasses.replace(config.model, remat='none'),
  )
  compiled = rocm.compile_step(config)
  assert not _broken(config, compiled)
  # Two forward, two of rows and two of matrices back, in each of 3 layers.
  assert calls.counted(compiled['kernels'])[calls.GROUPED] == 18


@pytest.mark.long  # `make plan-1024` compiles such a step, too.
@ROCM
def test_rocm_keeps_the_contracts_on_1024_devices():
  sizes = {'fsdp': 2, 'expert': 2, 'context': 2}
  config = _config(devices=1024, dtype='bfloat16', **sizes)
  compiled = rocm.compile_step(config)
  assert not _broken(config, compiled)
  # Tokens to experts, too. (Some of Muon is sent in bfloat16.)
  formula, real = rocm.compare(planner.make(config), compiled)['all-to-all']
  assert real == pytest.approx(formula, rel=0.03)
