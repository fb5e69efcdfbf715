# SPDX-License-Identifier: Apache-2.0
"""The training state: what a run carries from step to step."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import traverse_util

from ops.experts import packed
from zaya_jax import config as config_lib
from zaya_jax.config.checks import division
from zaya_jax.model import lora, shapes, zaya
from zaya_jax.optim import optimizer as optimizer_lib
from zaya_jax.optim import spikes
from zaya_jax.parallel import partition, zigzag


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
    base: of a run with --lora.rank, whose `params` are an adapter: parameters
      that stay as they are, in no checkpoint; None: there are none.
    reference: of a run with --dpo.beta that trains all parameters: those that
      it began with, in no checkpoint either; None: there are none.
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
  base: dict[str, Any] | None = None
  reference: dict[str, Any] | None = None

  def weights(self, scale: float) -> dict[str, Any]:
    """Parameters as `zaya.bind` takes them.

    Args:
      scale: of the adapter, if there is one.
    """
    if self.base is None:
      return self.params
    return lora.join(self.base, self.params, scale)

  @property
  def frozen(self) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The base and the reference."""
    return self.base, self.reference

  def own(self) -> 'TrainState':
    """What a checkpoint holds: all but what stays as it is."""
    return dataclasses.replace(self, base=None, reference=None)


def check(config: config_lib.Config, device_mesh: jax.sharding.Mesh) -> None:
  """Whether the axes of a mesh divide what they are to divide.

  Raises:
    UsageError: naming the first that does not, and what would.
  """
  sizes = device_mesh.shape
  division.check(config, sizes, config.model.num_experts)
  zigzag.check(config.data.seq_len, sizes['context'], config.model.conv_context)


def make_init(config: config_lib.Config) -> Callable[[], TrainState]:
  """A function that makes the state of step 0, without what stays as it is.

  Run it under jit.
  """
  optimizer = optimizer_lib.of_run(config)

  def init() -> TrainState:
    model_key, sample_key = jax.random.split(jax.random.key(config.seed))
    params, buffers = zaya.init(config.model, model_key)
    if config.lora.rank:
      params = lora.init(config.model, config.lora, model_key)
    params = partition.place(params)
    return TrainState(
      step=jnp.int32(0),
      params=params,
      buffers=buffers,
      opt_state=optimizer.params.init(params),
      balance_state=optimizer.buffers.init(buffers),
      skipped=jnp.int32(0),
      bad_steps=jnp.int32(0),
      recent=spikes.init(),
      held=jnp.int32(0),
      rng=jax.random.key_data(sample_key),
    )

  return init


def abstract_frozen(
  config: config_lib.Config, device_mesh: jax.sharding.Mesh
) -> dict[str, Any]:
  """Shapes and places of what stays as it is, for a program without it.

  Returns:
    'base' or 'reference' of the state, as the run has them; or nothing.
  """
  if config.lora.rank:
    return {'base': _abstract_model(config, device_mesh)}
  if config.dpo.beta:
    return {'reference': _abstract_model(config, device_mesh)}
  return {}


def _abstract_model(config, device_mesh):
  """Parameters that are not trained."""

  def one(path, shape):
    kind = shapes.kind_in_run(config, path)
    if kind is None:
      dtype = lora.frozen_dtype(config.model, path)
      return jax.ShapeDtypeStruct(shape, dtype)
    parts = shapes.packed_arrays(path, shape, kind).items()
    of = {k: jax.ShapeDtypeStruct(*a) for k, a in parts}
    return packed.Packed(**of)  # type: ignore[arg-type]

  wanted = shapes.parameters(config.model).items()
  found = {path: one(path, shape) for path, shape in wanted}
  tree = traverse_util.unflatten_dict(found, sep='/')
  with jax.set_mesh(device_mesh):
    specs = partition.part_specs(tree)

  def place(a, spec):
    sharding = jax.sharding.NamedSharding(device_mesh, spec)
    return jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding)

  return jax.tree.map(place, tree, specs)


def skip(
  state: TrainState, loss: jax.Array, grad_norm: jax.Array
) -> TrainState:
  """Counts the step that is held as refused, with what it measured."""
  now_2 = jnp.stack([loss, grad_norm])
  return dataclasses.replace(state, **counted(state, now_2, jnp.bool_(False)))


def release(state: TrainState) -> TrainState:
  """Forgets the step that is held: it may be taken once more."""
  return dataclasses.replace(state, held=jnp.int32(0))


def counted(state, now_2, good):
  """The counters after a step."""
  bad = jnp.int32(~good)
  return {
    'step': state.step + 1,
    'skipped': state.skipped + bad,
    'bad_steps': (state.bad_steps + bad) * bad,
    'recent': spikes.remember(state.recent, now_2),
    'held': jnp.int32(0),
  }
