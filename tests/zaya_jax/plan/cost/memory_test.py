# SPDX-License-Identifier: Apache-2.0
"""Bytes of a device against those of the real state and the compiled step."""

import math
import pathlib

import jax
import jax.numpy as jnp
import pytest

from ops.cross_entropy import xla as cross_entropy
from tests.support import released
from zaya_jax import config as config_lib
from zaya_jax.checkpoint import arrays
from zaya_jax.parallel import mesh
from zaya_jax.plan.cost import division, memory
from zaya_jax.train import state as state_lib
from zaya_jax.train import step

PARAMETERS = 8_840_488_784 + 256  # Layer 0 stores a vector it does not use.
FLAGFILE = pathlib.Path(__file__).parents[4] / 'configs' / 'quickstart.flags'


def _parse(*words):
  return config_lib.Config.parse([f'--flagfile={FLAGFILE}', *words])


def _state(config, devices):
  """The abstract state on the mesh of the run."""
  device_mesh = mesh.make_mesh(config.mesh, jax.devices()[:devices])
  with jax.set_mesh(device_mesh):
    state = jax.eval_shape(jax.jit(state_lib.make_init(config)))
  return device_mesh, arrays.on_mesh(state, device_mesh)


def _bytes(tree):
  """Of one device."""
  return sum(
    math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
    for leaf in jax.tree.leaves(tree)
  )


@pytest.mark.parametrize('devices', [1, 2, 8])
def test_state_is_divided_as_planned(devices):
  config = _parse(f'--plan.devices={devices}')
  plan = memory.plan(config, division.make(config), 4)
  _, state = _state(config, devices)
  assert plan.parameters == _bytes(state.params)
  held = _bytes((state.opt_state, state.balance_state))
  assert plan.optimizer == pytest.approx(held, rel=2e-3)


@pytest.mark.parametrize('devices', [1, 8])
def test_adapter_has_a_base_without_moments(devices):
  config = _parse(f'--plan.devices={devices}', '--lora.rank=3')
  layout = division.make(config)
  plan = memory.plan(config, layout, 4)
  device_mesh, state = _state(config, devices)
  base = state_lib.abstract_frozen(config, device_mesh)['base']
  factors = _bytes(state.params)
  assert plan.parameters == factors + _bytes(base)
  held = _bytes((state.opt_state, state.balance_state))
  assert plan.optimizer == pytest.approx(held, rel=2e-3)
  assert plan.optimizer == pytest.approx(2 * factors, rel=2e-3)
  saved = memory.checkpoint_bytes(config, layout)
  assert 0 <= _bytes(state) - saved < 500  # Counters; factors are whole.
  if devices == 1:
    assert plan.gradients == factors


@pytest.mark.parametrize('devices', [1, 8])
def test_reference_is_there_besides(devices):
  """Divided as parameters are; it has no moments, and is not saved."""
  words = f'--plan.devices={devices}', '--dpo.beta=0.1'
  config, without = _parse(*words), _parse(*words[:1])
  layout = division.make(config)
  device_mesh, state = _state(config, devices)
  frozen = state_lib.abstract_frozen(config, device_mesh)['reference']
  found, before = (memory.plan(c, layout, 4) for c in (config, without))
  assert found.parameters == _bytes(state.params) + _bytes(frozen)
  assert before.parameters == _bytes(state.params)
  assert found.optimizer == before.optimizer
  assert found.total - before.total == _bytes(frozen)
  saved = memory.checkpoint_bytes(config, layout)
  assert saved == memory.checkpoint_bytes(without, layout)


def test_reference_is_gathered_for_all_parts():
  parts = [
    _parse(
      *('--plan.devices=8', '--data.batch_size=16', '--optim.accumulation=2'),
      f'--dpo.beta={beta}',
    )
    for beta in (0.1, 0)
  ]
  found, before = (memory.plan(c, division.make(c), 4) for c in parts)
  leaves = division.reference(parts[0], division.make(parts[0]))
  gathered = sum(leaf.seen * leaf.frozen for leaf in leaves if leaf.cut)
  assert gathered > 0
  assert found.weights - before.weights == gathered


def test_base_is_in_the_type_of_products():
  config = _parse('--plan.devices=1', '--lora.rank=3')
  half, whole = (
    memory.plan(config, division.make(config), width) for width in (2, 4)
  )
  attention, experts = (
    sum(
      leaf.size
      for leaf in division.leaves(config, division.make(config), 2)
      if leaf.frozen == 2 and f'/{part}/' in leaf.name
    )
    for part in ('attn', 'experts')
  )
  assert experts > attention > 0
  assert whole.parameters - half.parameters == 2 * (attention + experts)


def test_checkpoint_is_the_whole_state():
  config = _parse('--plan.devices=1')
  _, state = _state(config, 1)
  saved = memory.checkpoint_bytes(config, division.make(config))
  assert 0 <= _bytes(state) - saved < 500  # Counters.


@pytest.mark.parametrize(
  'tokens, vocab', [(16_384, 262_272), (1000, 2**22), (7, 320), (1, 2**30)]
)
def test_chunks_of_the_loss_are_those_of_the_operation(tokens, vocab):
  expected = cross_entropy.chunk_tokens(tokens, vocab)
  assert memory.chunk_tokens(tokens, vocab) == expected


def test_fsdp_divides_parameters():
  config = _parse('--plan.devices=8', '--mesh.fsdp=4')
  plan = memory.plan(config, division.make(config), 4)
  _, state = _state(config, 8)
  # Vectors that four does not divide stay whole.
  assert plan.parameters == pytest.approx(_bytes(state.params), rel=0.03)


@pytest.mark.long  # Compiles the quick start; all below is counted by hand.
@pytest.mark.parametrize('parts', [1, 4])
def test_memory_in_passing_is_about_that_of_the_compiler(parts):
  accumulated = f'--optim.accumulation={parts}'
  config = _parse('--plan.devices=1', '--model.remat=block', accumulated)
  device_mesh, state = _state(config, 1)
  shape = (config.data.batch_size, config.data.seq_len)
  names = ('tokens', 'targets', 'segment_ids', 'positions', 'weights')
  batch = {
    name: jax.ShapeDtypeStruct(
      shape,
      jnp.float32 if name == 'weights' else jnp.int32,
      sharding=mesh.sharding(device_mesh, 'batch', 'length'),
    )
    for name in names
  }
  with jax.set_mesh(device_mesh):
    run = jax.jit(step.make_train_step(config), donate_argnums=0)
    real = run.lower(state, batch).compile().memory_analysis()
  plan = memory.plan(config, division.make(config), 4)
  planned = plan.total - plan.parameters - plan.optimizer
  assert planned == pytest.approx(real.temp_size_in_bytes, rel=0.2)


def test_optimizer_states_of_1024_devices_by_hand():
  config = released.parse('--plan.devices=1024')
  parts, whole = memory.optimizer_bytes(config, division.make(config))
  states = 4 * (8_289_167_360 + 2 * (551_321_424 + 256))
  # Balancing: two moments of 40 x 17, and a counter.
  rest = 1024 * parts + whole - states - 2 * 40 * 17 * 4
  assert rest == 1023 / 1024 * whole or 0 <= rest < 64
  # The router's small matrices and the grouped convolutions have no axis that
  # 1,024 divides: 2 of 40 x 256 x 256 and 1 of 40 x 256 x 17 of Muon, and 40 x
  # 2 x 10 x 128 x 128 of AdamW, with the vectors.
  matrices = 4 * 40 * (2 * 256**2 + 256 * 17) + 8 * 40 * 2 * 10 * 128**2
  assert 0 < whole - matrices < 4e6


def test_checkpoint_by_hand():
  config = released.parse('--plan.devices=1')
  shape = division.make(config)
  # Parameters, what the optimizer holds, and the balancing bias itself.
  held = 4 * PARAMETERS + sum(memory.optimizer_bytes(config, shape))
  assert memory.checkpoint_bytes(config, shape) == held + 4 * 40 * 17


EMBEDDING = 262_272 * 2048
EXPERTS = 40 * 16 * 3 * 2048**2


@pytest.mark.parametrize('parts', [1, 4])
def test_weights_and_gradients_of_eight_devices_by_hand(parts):
  config = released.parse('--plan.devices=8', f'--optim.accumulation={parts}')
  plan = memory.plan(config, division.make(config), 2)
  # Eight devices divide a dimension of nearly every parameter.
  assert plan.parameters == pytest.approx(4 * PARAMETERS / 8, rel=1e-3)
  # Experts are gathered in bfloat16.
  gathered = 4 * (PARAMETERS - EXPERTS) + 2 * EXPERTS
  assert plan.weights == pytest.approx(gathered, rel=1e-4)
  # Layers scatter theirs at once, and leave a slice; or a set sums over the
  # parts beside that of a part's experts. The slice then comes when activations
  # have gone.
  expected = 4 * EMBEDDING + 4 * PARAMETERS / 8
  expected = expected if parts == 1 else 4 * PARAMETERS + 2 * EXPERTS
  assert plan.gradients == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize('remat, own', [('cheap', 0), ('block', 2 * EXPERTS)])
def test_gradients_of_one_device_by_hand(remat, own):
  make = lambda parts: memory.plan(*_parts(parts), 2, remat)
  plan = make(1)
  # Those of experts are bfloat16, until they are summed over parts.
  assert plan.gradients == 4 * (PARAMETERS - EXPERTS) + 2 * EXPERTS
  assert plan.weights == 0
  plan = make(4)
  # Loops whose layers are computed anew whole have no sinks.
  assert plan.gradients == 4 * PARAMETERS + own
  assert plan.weights == 2 * EXPERTS


def _parts(count):
  config = released.parse('--plan.devices=1', f'--optim.accumulation={count}')
  return config, division.make(config)


def test_last_gradients_need_what_activations_leave():
  """A row of a token keeps nothing that is worth a word."""
  config = released.parse(
    '--plan.devices=8', '--optim.accumulation=4', '--data.seq_len=8',
    '--data.batch_size=32', '--model.remat=cheap', '--optim.name=adamw',
  )  # fmt: skip
  plan = memory.plan(config, division.make(config), 2)
  late = 4 * (PARAMETERS - EXPERTS) + 4 * PARAMETERS / 8
  others = plan.activations + plan.logits + plan.temporary
  expected = 4 * PARAMETERS + max(0.0, late - others)
  assert others < late
  assert plan.gradients == pytest.approx(expected, rel=1e-3)


def test_divided_experts_have_room_for_the_tokens_of_all():
  model = released.parse('--plan.devices=1').model
  alone, divided = (memory.dear_activations(model, 2, n) for n in (1, 4))
  assert divided - alone == 2 * 3 * (2048 + 3 * 2048)


def test_newton_schulz_works_where_activations_were():
  total = lambda remat: memory.plan(
    config, division.make(config), 2, remat
  ).total  # fmt: skip
  config = released.parse('--plan.devices=1', '--data.batch_size=4')
  held = memory.plan(config, division.make(config), 2, 'block')
  # X and the next X, A and bA + cA^2 of 640 matrices of 2,048 x 4,096.
  work = 640 * 2 * 2 * (2048 * 4096 + 2048**2)
  assert held.activations + held.logits + held.temporary == work
  # Less than what is kept of each layer, which then is the peak.
  assert total('none') > total('cheap') > total('block')


def test_activations_by_hand():
  """Bytes of 16,384 tokens in 40 layers, for each --model.remat."""
  config = released.parse('--plan.devices=1024')
  kept = lambda remat: (
    memory.plan(config, division.make(config), 2, remat).activations
    / (40 * 16384)
  )
  # float32: residual stream and router state of 2,048 and 256.
  assert kept('block') == 4 * (2048 + 256)
  assert kept('cheap') == 4 * (2 * 2048 + 8 * 256 + 17) + 2 * (
    4 * 2048 + 3 * 2048 + 1280 + 256 + 2 * 1280
  )
  assert kept('none') == 4 * (10 * 2048 + 4 * 1280 + 8 * 256 + 2 * 17) + 2 * (
    5 * 2048 + 2 * 1280 + 2 * 256 + 1024
  )
