# SPDX-License-Identifier: Apache-2.0
"""One training step: a pure function of the state and a batch."""

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from ops import dispatch
from zaya_jax import config as config_lib
from zaya_jax.optim import balance, muon, spikes
from zaya_jax.optim import optimizer as optimizer_lib
from zaya_jax.parallel import partition
from zaya_jax.plan.cost import machine as machine_lib
from zaya_jax.train import digest, gradients
from zaya_jax.train import state as state_lib

# Of a step that may be held back, for the host: whether it was, and each
# device's part of the loss.
HELD, LOSSES = 'guard/held', 'guard/losses'
DIGEST = 'data/digest'  # Of the batch, for the ledger.
# Collectives of which XLA fuses several into one message.
_FUSED = ('all_gather', 'reduce_scatter', 'all_reduce')

Step = Callable[
  [state_lib.TrainState, gradients.Batch],
  tuple[state_lib.TrainState, dict[str, jax.Array]],
]


def compiler_options(
  config: config_lib.Config | None = None,
) -> dict[str, str | int]:
  """XLA's, for the program of `make_train_step`, where it is to run here.

  On CUDA products are cuBLAS's. To try Triton's is half of compiling, none that
  was measured made a step faster, and as long as XLA may choose, it copies
  results of Newton-Schulz to their place (docs/performance.md). Whoever names
  the flag in XLA_FLAGS decides, but for --mesh.bucket_mib.

  Args:
    config: of the run, on the mesh that is set; None: no messages are fused.
  """
  said = os.environ.get('XLA_FLAGS', '')
  found: dict[str, str | int] = {}
  name = 'xla_gpu_enable_triton_gemm'
  if dispatch.platform() == 'cuda' and name not in said:
    found[name] = False
  size = bucket(config) if config else 0
  for kind in _FUSED if size else ():
    name = f'xla_gpu_{kind}_combine_threshold_bytes'
    if config.mesh.bucket_mib or name not in said:
      found[name] = size
  return found


def bucket(config: config_lib.Config) -> int:
  """Bytes up to which messages are fused on the mesh that is set; 0: XLA's."""
  if dispatch.platform() == 'cpu':
    return 0
  devices = jax.sharding.get_abstract_mesh().size
  return machine_lib.bucket(config, jax.devices()[0].device_kind, devices)


def make_jitted(
  config: config_lib.Config, optimizer: optimizer_lib.Optimizer
) -> Any:
  """The step that a run takes: it may be held, and its state is donated."""
  step = make_train_step(config, optimizer, hold=True)
  options = compiler_options(config)
  return jax.jit(step, donate_argnums=0, compiler_options=options)


def make_train_step(
  config: config_lib.Config,
  optimizer: optimizer_lib.Optimizer | None = None,
  hold: bool = False,
) -> Step:
  """The step of a run: (state, batch) -> (state, measured).

  A step whose loss or gradient norm is NaN, Inf or a spike is refused: only the
  counters of the state change.

  Args:
    config: of the run.
    optimizer: of its parameters and buffers; None: the one of the config.
    hold: after a refused step no step changes anything, counters included,
      until `skip` or `release`; so the host, which reads late, can execute it
      again. Then `measured` has `HELD` and `LOSSES` too.
  """
  optimizer = optimizer or optimizer_lib.of_run(config)

  def train_step(state: state_lib.TrainState, batch: gradients.Batch):
    loss, grads, load, losses_D, told = gradients.each_and_sum(
      *(config, state.params, state.buffers, batch), *state.frozen
    )
    grad_norm = optax.tree.norm(grads)
    now_2 = jnp.stack([loss, grad_norm])
    good = _is_good(config, state.recent, now_2)
    apply = good & (state.held == 0)
    updates, opt_state = optimizer.params.update(
      grads, state.opt_state, state.params, apply=apply, step=state.step
    )
    buffers, balance_state = balance.update(
      optimizer.buffers,
      *(state.buffers, state.balance_state, load, config.model.num_experts),
      centered=config.optim.balance_centered,
    )
    counted = state_lib.counted(state, now_2, good)
    if hold:
      counted = _where(apply, counted, state)
      counted['held'] = jnp.int32(~apply)
    arrays = {'buffers': buffers, 'balance_state': balance_state}
    new = dataclasses.replace(
      state,
      params=partition.apply_updates(state.params, updates, apply),
      opt_state=muon.select(apply, opt_state, state.opt_state),
      **_where(apply, arrays, state),
      **counted,
    )
    measured = {
      'train/loss': loss,
      'optim/grad_norm': grad_norm,
      'optim/lr': optimizer.rate_of(state.step, state.skipped),
      DIGEST: digest.of_batch(batch),
      **told,
      **_told(new, load.tokens, config.model.num_experts),
    }
    if hold:
      measured |= {HELD: new.held, LOSSES: losses_D}
    return new, measured

  return train_step


def _is_good(config, recent_2W, now_2):
  """Whether loss and gradient norm are finite and no spike."""
  limit, max_refused = config.guard.spike_limit, config.optim.max_bad_steps
  spike = spikes.is_spike(recent_2W, now_2, limit, max_refused)
  return jnp.all(jnp.isfinite(now_2)) & ~spike


def _told(state, load_NX, num_experts):
  """What is told of a step, beside its loss, gradient norm and rate."""
  return {
    'optim/skipped': state.skipped,
    'optim/bad_steps': state.bad_steps,
    'moe/load': load_NX,
    'moe/bias': state.buffers['layers']['router']['balance_bias'],
    **load_metrics(load_NX, num_experts),
  }


def _where(condition, new, state):
  """Fields of a state: these, or those that it has."""
  old = {name: getattr(state, name) for name in new}
  return jax.tree.map(functools.partial(jnp.where, condition), new, old)


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
