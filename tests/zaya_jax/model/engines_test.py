# SPDX-License-Identifier: Apache-2.0
"""A whole training step on other engines is the step on XLA's."""

import dataclasses
import functools
import sys

import jax
import pytest

from ops import dispatch, registry
from ops.attention import hopper as attention
from ops.cca import hopper as cca
from ops.experts import hopper as experts
from ops.hopper import persistent, warp_groups
from tests.support import close, gpus, meshes, quick, tiny
from zaya_jax import main
from zaya_jax.model import embedding, layers
from zaya_jax.parallel import batch as batch_lib
from zaya_jax.train import gradients, traced
from zaya_jax.train import state as state_lib
from zaya_jax.train import step as step_lib

# Kernels sum in another order, which Newton-Schulz grows in each iteration, and
# the first step of Adam where a gradient is nearly zero.
BOUND = 1e-3
# Heads as wide as the kernels want them.
MODEL = tiny.config(head_dim=16, num_layers=1, scan_layers='false')


def _engines(name):
  """The operations that have an engine of this name."""
  return {
    op: name
    for op in registry.FUNCTIONS
    if name in (e.name for e in registry.operation(op).engines)
  }


@functools.cache
def _first_state(config):
  return jax.jit(state_lib.make_init(config))()


def _gradients(engines):
  """Of the loss, and the loss: kernels of the model alone."""
  config = dataclasses.replace(meshes.config_of(replica=2), model=MODEL)
  mesh, state = meshes.mesh_of(config), meshes.first_state(config)
  run = jax.jit(functools.partial(gradients.loss_and_grads, config))
  with dispatch.use(**engines), jax.set_mesh(mesh):
    batch = batch_lib.put_batch(mesh, meshes.BATCH)
    loss, grads, _ = run(state.params, state.buffers, batch)
  return jax.device_get((grads, loss))


def _after_a_step(engines):
  config = meshes.config_of(replica=2)
  # Interpreted kernels compile slowly: the fewest iterations without a copy.
  optim = dataclasses.replace(config.optim, newton_schulz_steps=3)
  config = dataclasses.replace(config, model=MODEL, optim=optim)
  mesh = meshes.mesh_of(config)
  with jax.set_mesh(mesh):
    state = _first_state(config)
  with dispatch.use(**engines), jax.set_mesh(mesh):
    step = jax.jit(step_lib.make_train_step(config))
    state, measured = step(state, batch_lib.put_batch(mesh, meshes.BATCH))
  return jax.device_get((state.params, measured['train/loss']))


@pytest.fixture(scope='module')
def expected():
  return _gradients({})


FEW = {'cross_entropy': 'triton', 'residual_rms_norm': 'triton'}


def test_gradients_on_triton_are_those_on_xla(expected):
  grads, loss = _gradients(FEW)
  assert abs(loss - expected[1]) < 1e-5
  close.assert_close(grads, expected[0], close.FLOAT32_DEEP)


@pytest.mark.long  # All take half a minute; contract_test has each by itself.
def test_step_on_triton_is_the_step_on_xla():
  engines = _engines('triton')
  del engines['router']  # It takes bfloat16 tokens alone.
  params, loss = _after_a_step(engines)
  expected = _after_a_step({})
  assert abs(loss - expected[1]) < 1e-5
  close.assert_close(params, expected[0], BOUND)


def test_wrong_engine_is_noticed(monkeypatch, expected):
  operation = registry.operation('residual_rms_norm')
  (engine,) = (e for e in operation.engines if e.name == 'triton')

  def wrong(*args, **options):
    new, normed = engine.run(*args, **options)
    return new, 1.01 * normed

  changed = dataclasses.replace(engine, run=wrong)
  module = sys.modules['ops.residual_rms_norm']  # ops has the function.
  monkeypatch.setattr(module, 'ENGINES', (changed, *operation.engines[-1:]))
  grads, _ = _gradients({'residual_rms_norm': 'triton'})
  with pytest.raises(AssertionError, match='differs by'):
    close.assert_close(grads, expected[0], BOUND)


def test_an_engine_that_cannot_run_is_refused_before_the_data(tmp_path, capsys):
  run_dir, data = tmp_path / 'run', tmp_path / 'empty.txt'
  data.touch()
  command = ['zaya_jax', *tiny.FLAGS, f'--run_dir={run_dir}']
  command += [f'--data.input={data}', '--data.batch_size=8']
  assert main.main([*command, '--ops.cross_entropy=hopper']) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert '--ops.cross_entropy=hopper cannot run here' in line
  assert not run_dir.exists()
  # Others are traced, and then the data are read.
  assert main.main([*command, '--ops.cross_entropy=triton']) == 2
  assert str(data) in capsys.readouterr().err


def _scatters_that_add():
  """Of a step for CUDA: XLA adds there as its threads arrive."""
  config = meshes.config_of()
  model = dataclasses.replace(MODEL, dtype='bfloat16')
  config = dataclasses.replace(config, model=model)
  with dispatch.compile_for('cuda'):
    step = traced.trace(config, meshes.mesh_of(config))
  return str(step.jaxpr).count('scatter-add')


def test_no_sum_of_a_step_depends_on_who_comes_first(monkeypatch):
  assert _scatters_that_add() == 0
  plain = lambda table_VD, tokens_BL: table_VD[tokens_BL]
  monkeypatch.setattr(embedding, 'look_up', plain)
  assert _scatters_that_add() == 1


def _traced_for_hopper_gpus(monkeypatch, remat, **axes):
  monkeypatch.setattr(warp_groups, 'unavailable', lambda: None)
  for module in (persistent, cca):
    monkeypatch.setattr(module, 'processors', lambda: 132)
  config = meshes.config_of(**axes)
  sizes = {'d_model': 256, 'num_heads': 2, 'num_kv_heads': 1, 'head_dim': 128}
  sizes |= {'num_experts': 2, 'd_expert': 256, 'd_router': 64}
  model = tiny.config(
    num_layers=2, vocab_size=256, dtype='bfloat16', remat=remat, **sizes
  )
  optim = dataclasses.replace(config.optim, newton_schulz_dtype='bfloat16')
  data = dataclasses.replace(config.data, seq_len=128)
  config = dataclasses.replace(config, model=model, optim=optim, data=data)
  engines = _engines('hopper')
  with dispatch.use(**engines), dispatch.compile_for('cuda'):
    return traced.trace(config, meshes.mesh_of(config))


@pytest.fixture(scope='module')
def hopper():
  """A step, traced and lowered."""
  with pytest.MonkeyPatch.context() as patch:
    axes = {'fsdp': 2, 'expert': 2, 'replica': 2}
    step = _traced_for_hopper_gpus(patch, 'cheap', **axes)
    return step, gpus.lower(step, 'cuda').as_text()


def test_step_for_hopper_gpus_lowers_on_a_mesh(hopper):
  for kernel in ('attention_forward', 'cca_forward'):
    assert kernel in hopper[1]


def _makes_saved(jaxpr):
  """What makes the values that the forward loop over layers saves."""
  (loop,) = (
    eqn
    for eqn in _equations(jaxpr)
    if eqn.primitive.name == 'scan'
    and not eqn.params['reverse']
    and len(eqn.outvars) > len(_saved(eqn)) > len(eqn.outvars) / 2
  )
  body = loop.params['jaxpr'].jaxpr
  maker = {var: eqn for eqn in body.eqns for var in eqn.outvars}
  made = set()
  for var in _saved(loop):
    eqn = maker.get(var)
    while eqn and eqn.primitive.name in ('reshape', 'reduce_precision'):
      eqn = maker.get(eqn.invars[0])
    if eqn:
      made.add(eqn.params.get('name') or eqn.primitive.name)
  return made


def _saved(loop):
  """What each turn makes that is stacked, and not handed on."""
  made = zip(loop.params['jaxpr'].jaxpr.outvars, loop.outvars, strict=True)
  return [one for one, all_ in made if one.aval.shape != all_.aval.shape]


def _equations(jaxpr):
  for eqn in jaxpr.eqns:
    yield eqn
    for sub in jax.tree.leaves(
      list(eqn.params.values()), is_leaf=lambda x: hasattr(x, 'eqns')
    ):
      sub = getattr(sub, 'jaxpr', sub)
      if hasattr(sub, 'eqns'):
        yield from _equations(sub)


# Kernels by the functions that they are in.
TWICE = {'dot_general', 'forward', 'matmul', 'up'}


@pytest.mark.parametrize('remat', quick.only(('cheap', 'none'), 'cheap'))
def test_no_loop_saves_a_kernel_s_result_that_others_read(
  remat, hopper, monkeypatch
):
  step, _ = hopper
  if remat != 'cheap':
    step = _traced_for_hopper_gpus(monkeypatch, remat, replica=2)
  made = _makes_saved(step.jaxpr.jaxpr)
  assert 'optimization_barrier' in made
  assert not made & TWICE


def test_kernel_that_a_loop_would_run_twice_is_noticed(monkeypatch):
  for module in (attention, cca, experts, layers):
    monkeypatch.setattr(module, 'once', lambda made: made)
  step = _traced_for_hopper_gpus(monkeypatch, 'cheap', replica=2)
  assert _makes_saved(step.jaxpr.jaxpr) > TWICE
