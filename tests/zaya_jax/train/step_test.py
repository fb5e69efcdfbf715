# SPDX-License-Identifier: Apache-2.0
"""The training step: parts, devices, bad batches, and one golden run."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ops import dispatch
from tests.support import close, tiny
from zaya_jax import config as config_lib
from zaya_jax.checkpoint import arrays
from zaya_jax.inference import score
from zaya_jax.parallel import batch as batch_lib
from zaya_jax.parallel import mesh as mesh_lib
from zaya_jax.plan.cost import machine as machine_lib
from zaya_jax.train import gradients
from zaya_jax.train import state as state_lib
from zaya_jax.train import step as step_lib

MODEL = tiny.config()
CONFIG = config_lib.Config(
  num_steps=20,
  model=MODEL,
  data=config_lib.DataConfig(batch_size=8),
  optim=config_lib.OptimConfig(warmup_steps=4),
)
BATCH = tiny.batch(MODEL, rows=8, length=12)
NORM = jax.jit(optax.tree.norm)
_SUMS = '--xla_gpu_all_reduce_combine_threshold_bytes'
_TRITON = 'xla_gpu_enable_triton_gemm'


@functools.cache
def compiled_step(devices, balance='quantile'):
  """A function (state, batch) -> (state, measured); donates the state."""
  mesh = mesh_lib.make_mesh(config_lib.MeshConfig(replica=devices))
  optim = dataclasses.replace(CONFIG.optim, balance=balance)
  config = dataclasses.replace(CONFIG, optim=optim)
  step = jax.jit(step_lib.make_train_step(config), donate_argnums=0)
  with jax.set_mesh(mesh):
    example = batch_lib.put_batch(mesh, BATCH)
    run = step.lower(state_on(devices), example).compile()
  return lambda state, batch: run(state, batch_lib.put_batch(mesh, batch))


def state_on(devices, **changes):
  """A state of step 0 with the parameters of `tiny`, on a new mesh."""
  mesh = mesh_lib.make_mesh(config_lib.MeshConfig(replica=devices))
  params, buffers = tiny.arrays(MODEL)
  state = jax.tree.map(
    lambda s: np.zeros(s.shape, s.dtype),
    jax.eval_shape(state_lib.make_init(CONFIG)),
  )
  state = dataclasses.replace(
    state, **{'params': params, 'buffers': buffers, **changes}
  )
  with jax.set_mesh(mesh):
    placed = arrays.on_mesh(jax.eval_shape(state_lib.make_init(CONFIG)), mesh)
  # Of NumPy: jax would compile for each shape how to copy it.
  return jax.device_put(host(state), jax.tree.map(lambda a: a.sharding, placed))


@pytest.mark.parametrize(
  ('platform', 'flags', 'wanted'),
  [
    ('cpu', '', {}),
    ('rocm', '', {}),
    ('cuda', '--xla_gpu_autotune_level=0', {_TRITON: False}),
    ('cuda', f'--{_TRITON}=true', {}),
  ],
)
def test_xla_tries_no_triton_on_cuda_unless_told(
  monkeypatch, platform, flags, wanted
):
  monkeypatch.setenv('XLA_FLAGS', flags)
  with dispatch.compile_for(platform):
    assert step_lib.compiler_options() == wanted


@pytest.mark.parametrize(
  ('words', 'flags', 'wanted'),
  [
    ('--mesh.bucket_mib=4', '', [2**22] * 3),
    # Said of this run, and so before what is said of all.
    ('--mesh.bucket_mib=4', _SUMS + '=1', [2**22] * 3),
    ('', '', []),
    # Where the all-reduce of eight devices has 90 % of 318 GB/s.
    ('--machine=mi300x', '', [2**27] * 3),
    ('--machine=mi300x', _SUMS + '=1', [2**27] * 2),
    ('--machine=none', '', []),
  ],
)
def test_messages_are_fused_up_to_what_saturates_links(
  monkeypatch, words, flags, wanted
):
  class Device:
    device_kind = 'AMD Instinct MI300X'

  config = config_lib.Config.parse(words.split())
  # Before the flags, of which jax reads how many devices there are.
  mesh = mesh_lib.make_mesh(config.mesh, jax.local_devices())
  monkeypatch.setenv('XLA_FLAGS', flags)
  monkeypatch.setattr(jax, 'devices', lambda: [Device])
  with dispatch.compile_for('rocm'), jax.set_mesh(mesh):
    found = step_lib.compiler_options(config)
  assert list(found.values()) == wanted


def test_machine_of_another_chip_is_refused():
  config = config_lib.Config.parse(['--machine=mi300x'])
  with pytest.raises(config_lib.UsageError, match='--machine=mi300x does not'):
    machine_lib.bucket(config, 'NVIDIA H200', 8)


def test_xla_knows_its_options():
  lowered = jax.jit(lambda x: x + 1).lower(jnp.ones(()))
  config = config_lib.Config.parse(['--mesh.bucket_mib=4'])
  with dispatch.compile_for('cuda'):
    options = step_lib.compiler_options(config)
  assert len(options) == 4
  lowered.compile(compiler_options=options)
  with pytest.raises(Exception, match='no_such_option'):
    lowered.compile(compiler_options={'no_such_option': False})


def host(tree):
  return jax.tree.map(np.array, tree)


@functools.cache
def loss_and_grads(parts):
  optim = dataclasses.replace(CONFIG.optim, accumulation=parts)
  config = dataclasses.replace(CONFIG, optim=optim)
  run = jax.jit(functools.partial(gradients.loss_and_grads, config))
  return lambda batch: run(*tiny.arrays(MODEL), batch)


@pytest.mark.parametrize('parts', [pytest.param(2, marks=pytest.mark.long), 4])
def test_parts_of_a_batch_give_what_the_whole_batch_gives(parts):
  # Parts with different numbers of tokens: rows 0 to 3 have almost none.
  weights = BATCH['weights'].copy()
  weights[:4, 2:] = 0
  batch = {**BATCH, 'weights': weights}
  found, expected = loss_and_grads(parts)(batch), loss_and_grads(1)(batch)
  close.assert_close(found, expected, close.FLOAT32_DEEP)
  np.testing.assert_array_equal(found[2], expected[2])


def test_loss_is_the_weighted_mean_of_the_tokens():
  rng = np.random.default_rng(0)
  weights = BATCH['weights'] * rng.integers(0, 4, BATCH['weights'].shape)
  logits = tiny.logits(
    MODEL,
    *tiny.arrays(MODEL),
    BATCH['tokens'],
    segment_ids=BATCH['segment_ids'],
    positions=BATCH['positions'],
  )
  logits = np.asarray(logits, np.float64)
  nats = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(
    logits, BATCH['targets'][..., None], -1
  ).squeeze(-1)
  loss, grads, load = loss_and_grads(1)({**BATCH, 'weights': weights})
  expected = np.sum(nats * weights) / np.sum(weights)
  np.testing.assert_allclose(loss, expected, rtol=close.FLOAT32_DEEP)
  tripled = loss_and_grads(1)({**BATCH, 'weights': 3 * weights})
  close.assert_close(tripled, (loss, grads, load), close.FLOAT32_DEEP)
  assert load.sum() == MODEL.num_layers * np.sum(BATCH['segment_ids'] > 0)


def test_batch_without_a_target_has_no_loss_and_no_gradient():
  weights = np.zeros_like(BATCH['weights'])
  loss, grads, _ = loss_and_grads(1)({**BATCH, 'weights': weights})
  assert loss == 0 and NORM(grads) == 0


def test_eight_devices_do_what_one_does():
  (one, told), (eight, told_8) = (
    host(compiled_step(devices)(state_on(devices), BATCH)) for devices in (1, 8)
  )
  close.assert_close(told_8, told, close.FLOAT32_DEEP)
  # The state of the optimizer is the clipped gradient and its square.
  close.assert_close(eight.opt_state, one.opt_state, 5 * close.FLOAT32_DEEP)
  close.assert_close(eight.buffers, one.buffers, close.FLOAT32)
  # Newton-Schulz grows rounding; Adam's first step is a sign, which may turn
  # where a gradient is almost 0.
  before = host(tiny.arrays(MODEL)[0])
  moved = jax.tree.map(np.subtract, one.params, before)
  for path, leaf in jax.tree_util.tree_leaves_with_path(moved):
    assert np.any(leaf), jax.tree_util.keystr(path)
  for name in ('q', 'out'):
    found, expected = (
      state.params['layers']['attn'][name] for state in (eight, one)
    )
    close.assert_close(found, expected, close.FLOAT32_DEEP)


@pytest.mark.parametrize('devices', [1, 8])
def test_state_keeps_its_types(devices):
  before = state_on(devices)
  types = jax.tree.map(jax.typeof, before)
  after, _ = compiled_step(devices)(before, BATCH)
  assert jax.tree.map(jax.typeof, after) == types


def infinite_embedding():
  params, _ = tiny.arrays(MODEL)
  return {'params': {**params, 'embed': params['embed'].at[3, 0].set(jnp.inf)}}


def gradient_too_large_for_its_norm():
  params, _ = tiny.arrays(MODEL)
  return {'params': {**params, 'final_norm': params['final_norm'] * 1e25}}


BAD = {
  'nan_in_the_batch': (dict, {'weights': BATCH['weights'] * np.nan}),
  'inf_in_a_parameter': (infinite_embedding, {}),
  'inf_in_the_gradient_alone': (gradient_too_large_for_its_norm, {}),
}


@pytest.mark.parametrize('name', BAD)
def test_bad_step_changes_nothing_but_the_counters(name):
  changes, inputs = BAD[name]
  before = host(state_on(1, **changes()))
  after, told = host(
    compiled_step(1)(state_on(1, **changes()), {**BATCH, **inputs})
  )
  assert np.isfinite(told['train/loss']) == (name.endswith('alone'))
  assert not np.isfinite(told['optim/grad_norm'])
  counters = {'step': 1, 'skipped': 1, 'bad_steps': 1}
  expected = dataclasses.replace(
    before, **{k: np.int32(v) for k, v in counters.items()}
  )
  jax.tree.map(np.testing.assert_array_equal, after, expected)


def test_counters_and_learning_rate_of_good_and_bad_steps():
  bad = {**BATCH, 'weights': np.where(BATCH['weights'] > 0, np.inf, 0)}
  state, seen = state_on(1), []
  for batch in (BATCH, bad, bad, BATCH, bad):
    state, told = compiled_step(1)(state, batch)
    names = ('optim/skipped', 'optim/bad_steps', 'optim/lr')
    seen.append([int(state.step), *(float(told[name]) for name in names)])
  # A bad step does not advance the schedule: 4 steps of warmup to 2e-3.
  expected = [
    [1, 0, 0, 5e-4],
    [2, 1, 1, 1e-3],
    [3, 2, 2, 1e-3],
    [4, 2, 0, 1e-3],
    [5, 3, 1, 1.5e-3],
  ]
  np.testing.assert_allclose(seen, expected, rtol=1e-6)


def test_norm_is_told_before_clipping():
  _, told = compiled_step(1)(state_on(1), BATCH)
  loss, grads, _ = loss_and_grads(1)(BATCH)
  norm = NORM(grads)
  assert norm > CONFIG.optim.clip_norm
  np.testing.assert_allclose(told['optim/grad_norm'], norm, rtol=1e-4)
  np.testing.assert_allclose(told['train/loss'], loss, rtol=1e-5)


def test_evaluation_sums_nats_and_tokens():
  run = jax.jit(score.make_eval_step(MODEL))
  nats, tokens = run(*tiny.arrays(MODEL), BATCH)
  assert tokens == BATCH['weights'].sum()
  np.testing.assert_allclose(
    nats / tokens, loss_and_grads(1)(BATCH)[0], rtol=close.FLOAT32_DEEP
  )


def test_load_metrics_by_hand():
  # Two layers, two experts, the skip class.
  load = jnp.array([[3.0, 1.0, 4.0], [2.0, 2.0, 0.0]])
  metrics = jax.jit(step_lib.load_metrics, static_argnums=1)
  found = metrics(load, 2)
  entropy = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25)) / np.log(2)
  expected = {
    'moe/load_max': 1.5,
    'moe/load_min': 0.5,
    'moe/entropy': (entropy + 1) / 2,
    'moe/skip': 0.25,
  }
  close.assert_close(
    found, {k: np.float64(v) for k, v in expected.items()}, close.FLOAT32
  )
  alone = metrics(jnp.array([[3.0, 1.0]]), 1)
  assert (alone['moe/load_max'], alone['moe/entropy']) == (1, 0)
  nothing = metrics(jnp.zeros((2, 3)), 2)
  assert all(np.isfinite(value) for value in nothing.values())


def test_first_state_follows_the_seed():
  init = lambda seed: jax.jit(
    state_lib.make_init(dataclasses.replace(CONFIG, seed=seed))
  )()
  state, other = init(0), init(1)
  assert close.error(other.params['embed'], state.params['embed']) > 0.1
  assert not np.array_equal(other.rng, state.rng)
  assert (state.step, state.skipped, state.bad_steps) == (0, 0, 0)


# Losses of three steps, then norms after them; from compiled_step(1, balance).
GOLDEN = {
  'quantile': {
    'losses': [4.3952227, 4.4033917, 4.3363829],
    'embed': 7.5796304,
    'q': 6.6975441,
    'gate_up': 11.7479677,
    'balance_bias': 1.0547234,
  },
  'adam': {
    'losses': [4.3952227, 4.3770432, 4.3266788],
    'embed': 7.578555,
    'q': 6.697048,
    'gate_up': 11.747712,
    'balance_bias': 0.15771653,
  },
}
CHANGED = (
  'Training computes something else than it did. If the change is meant, say '
  'so in the commit and write the new numbers here; if it is not, a step of '
  'every run that is resumed has changed as well.'
)


def three_steps(between=lambda state: state, balance='quantile'):
  state, losses = state_on(1), []
  for _ in range(3):
    state, told = compiled_step(1, balance)(between(state), BATCH)
    losses.append(float(told['train/loss']))
  layers = state.params['layers']
  return {
    'losses': losses,
    'embed': np.linalg.norm(state.params['embed']),
    'q': np.linalg.norm(layers['attn']['q']),
    'gate_up': np.linalg.norm(layers['experts']['gate_up']),
    'balance_bias': np.linalg.norm(
      state.buffers['layers']['router']['balance_bias']
    ),
  }


# Float32 on another processor: sums in another order, in three steps.
SAME = {'rtol': 2e-5}


@pytest.mark.parametrize('balance', GOLDEN)
def test_three_steps_are_the_golden_ones(balance):
  found = three_steps(balance=balance)
  for name, expected in GOLDEN[balance].items():
    np.testing.assert_allclose(
      found[name], expected, **SAME, err_msg=f'{name}: {CHANGED}'
    )


def test_lost_state_of_the_optimizer_would_be_noticed():
  forget = lambda state: dataclasses.replace(
    state, opt_state=jax.tree.map(jnp.zeros_like, state.opt_state)
  )
  found = three_steps(forget)
  for name in ('losses', 'embed', 'q', 'gate_up'):
    assert not np.allclose(found[name], GOLDEN['quantile'][name], **SAME), name


def test_batch_is_put_row_by_row():
  mesh = mesh_lib.make_mesh(config_lib.MeshConfig())
  placed = batch_lib.put_batch(mesh, BATCH)
  for name, array in placed.items():
    assert array.addressable_shards[3].data.shape == (1, 12)
    np.testing.assert_array_equal(
      array.addressable_shards[3].data, BATCH[name][3:4]
    )
