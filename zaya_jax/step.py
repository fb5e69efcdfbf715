# SPDX-License-Identifier: Apache-2.0
"""The training state and the pure functions that change it."""

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P

from ops import dispatch
from zaya_jax import config as config_lib
from zaya_jax import fields, gradients, losses, mesh, partition
from zaya_jax.context import layout
from zaya_jax.model import zaya
from zaya_jax.optim import balance, muon, spikes
from zaya_jax.optim import optimizer as optimizer_lib
from zaya_jax.optim import schedule as schedule_lib

Batch = gradients.Batch
_ROWS = mesh.spec('batch', 'length')
loss_and_grads = gradients.loss_and_grads
# Of a step that may be held back, for the host: whether it was, and each
# device's part of the loss.
HELD, LOSSES = 'guard/held', 'guard/losses'


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainState:
  """All that a run carries from step to step, but for the data's integer.

  Attributes:
    step: int32 scalar, steps done, skipped ones included.
    params: nested dict of float32 arrays.
    buffers: nested dict, the balancing bias [N, X] float32.
    opt_state: optax state of `params`.
    balance_state: optax state of `buffers`.
    skipped: int32 scalar, steps refused so far for NaN, Inf or a spike.
    bad_steps: int32 scalar, of these in a row until now.
    recent: [2, W] float32, loss and gradient norm of the last steps.
    held: int32 scalar, 1 while a refused step waits for `skip` or `release`.
    rng: uint32 data of a jax.random key, for samples.
  """

  step: jax.Array
  params: dict[str, Any]
  buffers: dict[str, Any]
  opt_state: optax.OptState
  balance_state: optax.OptState
  skipped: jax.Array
  bad_steps: jax.Array
  recent: jax.Array
  held: jax.Array
  rng: jax.Array


def check(config: config_lib.Config, device_mesh: jax.sharding.Mesh) -> None:
  """Whether the axes of a mesh divide what they are to divide.

  Raises:
    UsageError: naming the first that does not, and what would.
  """
  sizes = device_mesh.shape
  across = device_mesh.size // sizes['context']
  parts = across * config.optim.accumulation
  if config.data.batch_size % parts:
    raise config_lib.UsageError(
      f'--data.batch_size={config.data.batch_size} must be a multiple of '
      f'{parts}: {across} groups of devices times --optim.accumulation='
      f'{config.optim.accumulation}; change one of them, or use fewer devices '
      'with --mesh.replica.'
    )
  experts = config.model.num_experts
  if experts % sizes['expert']:
    raise config_lib.UsageError(
      f'--mesh.expert={sizes["expert"]} does not divide '
      f'--model.num_experts={experts}; choose one of '
      f'{fields.divisors(experts)}.'
    )
  layout.check(config.data.seq_len, sizes['context'], config.model.conv_context)


def make_init(config: config_lib.Config) -> Callable[[], TrainState]:
  """A function that makes the state of step 0; run it under jit."""
  optimizer = optimizer_lib.make_optimizer(config.optim, config.num_steps)
  balancer = balance.make_balancer(config.optim)

  def init() -> TrainState:
    model_key, sample_key = jax.random.split(jax.random.key(config.seed))
    params, buffers = zaya.init(config.model, model_key)
    params = partition.place(params)
    return TrainState(
      step=jnp.int32(0),
      params=params,
      buffers=buffers,
      opt_state=optimizer.init(partition.divide(params)),
      balance_state=balancer.init(buffers),
      skipped=jnp.int32(0),
      bad_steps=jnp.int32(0),
      recent=spikes.init(),
      held=jnp.int32(0),
      rng=jax.random.key_data(sample_key),
    )

  return init


def settings(config: config_lib.Config) -> tuple[Any, ...]:
  """All that the program of `make_train_step` is made of."""
  names = ('num_steps', 'model', 'mesh', 'ops', 'optim', 'guard')
  return tuple(getattr(config, name) for name in names)


def compiler_options() -> dict[str, bool]:
  """XLA's, for the program of `make_train_step`, where it is to run here.

  On CUDA products are cuBLAS's. To try Triton's is half of compiling, none that
  was measured made a step faster, and as long as XLA may choose, it copies
  results of Newton-Schulz to their place (docs/performance.md). Whoever names
  the flag in XLA_FLAGS decides.
  """
  name = 'xla_gpu_enable_triton_gemm'
  if dispatch.platform() != 'cuda' or name in os.environ.get('XLA_FLAGS', ''):
    return {}
  return {name: False}


def make_train_step(
  config: config_lib.Config, hold: bool = False
) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, jax.Array]]]:
  """The step of a run: (state, batch) -> (state, measured).

  A step whose loss or gradient norm is NaN, Inf or a spike is refused: of the
  state nothing changes but the counters.

  Args:
    config: of the run.
    hold: after a refused step no step changes anything, counters included,
      until `skip` or `release`; so the host, which reads late, can execute it
      again from the same state. Then `measured` has `HELD` and `LOSSES` too.
  """
  optimizer = optimizer_lib.make_optimizer(config.optim, config.num_steps)
  balancer = balance.make_balancer(config.optim)
  schedule = schedule_lib.make_schedule(config.optim, config.num_steps)
  num_experts = config.model.num_experts

  def train_step(state: TrainState, batch: Batch):
    loss, grads, load_NX, losses_D = gradients.each_and_sum(
      config, state.params, state.buffers, batch
    )
    grad_norm = optax.tree.norm(grads)
    now_2 = jnp.stack([loss, grad_norm])
    good = jnp.all(jnp.isfinite(now_2))
    good &= ~spikes.is_spike(state.recent, now_2, config.guard.spike_limit)
    apply = good & (state.held == 0)
    updates, opt_state = optimizer.update(
      grads, state.opt_state, partition.divide(state.params), apply=apply
    )
    buffers, balance_state = balance.update(
      balancer, state.buffers, state.balance_state, load_NX, num_experts
    )
    counted = _counted(state, now_2, good)
    if hold:
      counted = _where(apply, counted, {k: getattr(state, k) for k in counted})
      counted['held'] = jnp.int32(~apply)
    arrays = {'buffers': buffers, 'balance_state': balance_state}
    new = dataclasses.replace(
      state,
      params=partition.apply_updates(state.params, updates, apply),
      opt_state=muon.select(apply, opt_state, state.opt_state),
      **_where(apply, arrays, {k: getattr(state, k) for k in arrays}),
      **counted,
    )
    measured = {
      'train/loss': loss,
      'optim/grad_norm': grad_norm,
      'optim/lr': schedule(_updates_done(state)),
      'optim/skipped': new.skipped,
      'optim/bad_steps': new.bad_steps,
      'moe/load': load_NX,
      'moe/bias': new.buffers['layers']['router']['balance_bias'],
      **load_metrics(load_NX, num_experts),
    }
    return new, measured | ({HELD: new.held, LOSSES: losses_D} if hold else {})

  return train_step


def skip(
  state: TrainState, loss: jax.Array, grad_norm: jax.Array
) -> TrainState:
  """Counts the step that is held as refused, with what it measured."""
  now_2 = jnp.stack([loss, grad_norm])
  return dataclasses.replace(state, **_counted(state, now_2, jnp.bool_(False)))


def release(state: TrainState) -> TrainState:
  """Forgets the step that is held: it may be taken once more."""
  return dataclasses.replace(state, held=jnp.int32(0))


def _counted(state, now_2, good):
  """The counters after a step."""
  bad = jnp.int32(~good)
  return {
    'step': state.step + 1,
    'skipped': state.skipped + bad,
    'bad_steps': (state.bad_steps + bad) * bad,
    'recent': spikes.remember(state.recent, now_2),
    'held': jnp.int32(0),
  }


def _where(condition, new, old):
  return jax.tree.map(functools.partial(jnp.where, condition), new, old)


def make_eval_step(
  config: config_lib.ModelConfig, context_mode: str = 'gather'
) -> Callable[[Any, Any, Batch], tuple[jax.Array, jax.Array]]:
  """(params, buffers, batch) -> sums of nats and of counting tokens."""

  def local(params, buffers, batch):
    model = zaya.bind(config, params, buffers)
    nats, _ = losses.next_token(model, batch, context_mode)
    counting = jnp.sum(batch['weights'], dtype=jnp.float32)
    return mesh.total((nats, counting))

  def eval_step(params, buffers, batch):
    return mesh.on_each(
      local,
      in_specs=(partition.param_specs(params), P(), _ROWS),
      out_specs=(P(), P()),
    )(params, buffers, batch)

  return eval_step


def load_metrics(load_NX: jax.Array, num_experts: int) -> dict[str, jax.Array]:
  """How evenly tokens spread over experts.

  Args:
    load_NX: [N, X] tokens that chose each class.
    num_experts: E.

  Returns:
    moe/load_max and moe/load_min: the most and the least loaded expert of any
    layer, 1.0 being an even share; moe/entropy: entropy of the load over ln E,
    the mean over layers; moe/skip: share of tokens that no expert computes.
  """
  total_N = jnp.maximum(jnp.sum(load_NX, axis=1), 1.0)
  routed_N = jnp.maximum(jnp.sum(load_NX[:, :num_experts], axis=1), 1.0)
  share_NE = load_NX[:, :num_experts] / routed_N[:, None]
  entropy_N = -jnp.sum(jax.scipy.special.xlogy(share_NE, share_NE), axis=1)
  even = jnp.log(jnp.maximum(num_experts, 2))
  return {
    'moe/load_max': jnp.max(share_NE) * num_experts,
    'moe/load_min': jnp.min(share_NE) * num_experts,
    'moe/entropy': jnp.mean(entropy_N) / even,
    'moe/skip': jnp.mean(1.0 - routed_N / total_N),
  }


def put_batch(device_mesh: jax.sharding.Mesh, batch: Any) -> Batch:
  """Moves a batch of NumPy arrays onto the mesh.

  Rows are divided over the data axes, and the tokens of each over `context`, in
  zig-zag order. Of several processes each gives its own rows, those of
  `mesh.data_shard`, and all of their tokens.
  """
  rows = mesh.sharding(device_mesh, 'batch', 'length')
  if (parts := device_mesh.shape.get('context', 1)) > 1:
    batch = layout.divide(batch, parts)
  if jax.process_count() == 1:
    return jax.device_put(batch, rows)
  index, count = mesh.data_shard(device_mesh)

  def put(a):
    def read(place):
      start, stop, _ = place[0].indices(len(a) * count)
      return a[start - index * len(a) : stop - index * len(a), *place[1:]]

    shape = (len(a) * count, *a.shape[1:])
    return jax.make_array_from_callback(shape, rows, read)

  return jax.tree.map(put, batch)


def _updates_done(state):
  return state.step - state.skipped
