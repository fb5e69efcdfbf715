# SPDX-License-Identifier: Apache-2.0
"""The loss of a batch over all devices, and its gradients."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from ops.experts import sink as sink_lib
from zaya_jax import config as config_lib
from zaya_jax.model import lora, losses, router, working, zaya
from zaya_jax.model.losses import even, preferences
from zaya_jax.optim import sample as sample_lib
from zaya_jax.parallel import mesh, partition

Batch = dict[str, jax.Array]
_ROWS = mesh.spec('batch', 'length')


def loss_and_grads(
  config: config_lib.Config,
  params: dict[str, Any],
  buffers: dict[str, Any],
  batch: Batch,
) -> tuple[jax.Array, dict[str, Any], jax.Array]:
  """Mean loss over the counting tokens, its gradients, tokens by class."""
  loss, grads, load, *_ = each_and_sum(config, params, buffers, batch)
  return loss, grads, load.tokens


def each_and_sum(
  config: config_lib.Config,
  params: dict[str, Any],
  buffers: dict[str, Any],
  batch: Batch,
  base: dict[str, Any] | None = None,
  reference: dict[str, Any] | None = None,
) -> tuple[
  jax.Array, dict[str, Any], router.Load, jax.Array, dict[str, jax.Array]
]:
  """As `loss_and_grads`, the load whole, and each device's loss, [devices].

  Each device computes its tokens in `--optim.accumulation` parts, one after
  another, and divides by the tokens of the whole batch; so the sum over parts
  and devices is what one large batch gives. Gradients are summed in float32,
  over the devices once, and come divided as the parameters and the optimizer's
  state.

  With one part each layer gathers its matrices, and the sum of its gradients is
  scattered in its backward pass: both are sent while other layers compute. With
  more parts all are gathered before the first and summed after the last.

  Where there is a base, `params` are an adapter of it. No gradients of experts
  outlive their layer then, so they need no sinks. With --dpo.beta that base, or
  else `reference`, is compared with, and the loss is the mean over pairs.
  """
  shapes = jax.tree.map(
    lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (params, base, reference)
  )

  def local(params, buffers, batch, base, reference):
    tokens = jnp.maximum(mesh.total(_counting(config, batch)), 1.0)
    wide = (params, shapes[0]) if base is None else (base, shapes[1])
    cast = _cast(config, *wide)
    reference = reference and _cast(config, reference, shapes[2])

    def loss_fn(params, part, first=None, add=0):
      sinks = None
      if base is not None:
        params = lora.join(cast, params, config.lora.scale)
      elif first:
        params, sinks = _with_sinks(params, cast, first, add)
      given = params, reference, buffers, part, sinks
      cost, *more = _cost(config, *given)
      return cost / tokens, tuple(more)

    grad_fn = jax.value_and_grad(loss_fn, has_aux=True)
    sink = base is None and working.takes_sinks(config.model, cast)
    parts, learns = config.optim.parts, cast if base is None else params
    loss, load, told, grads = _accumulate(grad_fn, learns, batch, parts, sink)
    grads = partition.sum_gradients(grads, shapes[0])
    told = {name: mesh.total(a) / tokens for name, a in told.items()}
    return mesh.total(loss), grads, _summed(load), loss[None], told

  each, frozen = P(tuple(mesh.sizes())), (base, reference)
  return mesh.on_each(
    local,
    in_specs=(mesh.specs_of(params), P(), _ROWS, *mesh.specs_of(frozen)),
    out_specs=(P(), partition.part_specs(params), P(), each, P()),
  )(params, buffers, batch, *frozen)


def _counting(config, batch):
  """What the loss is a mean of: tokens that count, or pairs of answers."""
  of_pairs = config.dpo.beta > 0
  counts = preferences.exist(batch) if of_pairs else batch['weights']
  return jnp.sum(counts, dtype=jnp.float32)


def _cost(config, params, reference, buffers, batch, sinks):
  """Sums over a batch, or a part of it: loss, load, what is told."""
  every = sample_lib.every(config.optim, config.data)
  if config.dpo.beta:
    how = config.model, config.dpo
    return preferences.compare(
      *how, params, reference, buffers, batch, sinks, every
    )
  model = zaya.bind(config.model, params, buffers)
  experts = config.model.num_experts
  weight = config.optim.balance_loss * (config.optim.balance == 'loss')
  likely_of = experts if weight else 0
  nats, load = losses.next_token(
    model, batch, config.mesh.context_mode, sinks, every, likely_of
  )
  if not weight:
    return nats, load, {}
  uneven_N = even.even(load, experts)
  # Only its gradient counts: the loss that is told is that of the text.
  aside = weight * jnp.sum(uneven_N)
  nats += aside - jax.lax.stop_gradient(aside)
  told = {'train/balance_loss': jnp.mean(uneven_N)}
  return nats, load._replace(likely=None), told


def _cast(config, params, shapes):
  """Parameters as layers take them in the parts of a step."""
  if config.optim.parts > 1:
    narrow = working.narrow(config.model)
    params = partition.gather_once(params, shapes, narrow)
  return working.cast_experts(config.model, params)


def _with_sinks(params, cast, first, add):
  """Parameters whose experts get their gradients by sinks, and these."""
  stacks = sink_lib.Stacks(**params['layers']['experts'])
  sinks = working.Sinks(stacks=stacks, first=first, add=jnp.int32(add))
  return working.with_experts(params, cast['layers']['experts']), sinks


def _accumulate(grad_fn, params, batch, parts, sink):
  """Sums of loss, load, what is told, and gradients over this device's parts.

  Args:
    grad_fn: of parameters and a part and, with a sink, what the gradients of
      experts begin with, and whether to add to that.
    params: of this device.
    batch: its rows.
    parts: one after another.
    sink: whether gradients of the experts are summed where they are made.
  """
  dtype_of = lambda a: jnp.float32 if parts > 1 else a.dtype
  first = {}
  if sink:  # Of this only the type is meant.
    experts = params['layers']['experts']
    first = {k: jax.lax.empty(a.shape, dtype_of(a)) for k, a in experts.items()}
    params = working.with_experts(params, first)
  begin = lambda experts: sink_lib.Stacks(**experts) if sink else None
  if parts == 1:
    (loss, (load, told)), grads = grad_fn(params, batch, begin(first))
    return loss, load, told, grads

  def add_part(sums, numbered):
    index, part = numbered
    experts = sums[3]['layers']['experts'] if sink else {}
    (loss, (load, told)), grads = grad_fn(
      params, part, begin(experts), index > 0
    )
    added = jax.tree.map(jnp.add, sums, (loss, load.tokens, told, grads))
    if sink:
      experts = grads['layers']['experts']
      added = *added[:3], working.with_experts(added[3], experts)
    return added, load.sample

  shapes = jax.eval_shape(grad_fn, params, batch)
  (loss, (load, told)), grads = jax.tree.map(
    lambda a: jnp.zeros(a.shape, jnp.float32), shapes
  )
  if sink:
    grads = working.with_experts(grads, first)
  numbers = jnp.arange(parts, dtype=jnp.int32), _interleave(batch, parts)
  (loss, tokens, told, grads), sample = jax.lax.scan(
    add_part, (loss, load.tokens, told, grads), numbers
  )
  sample = jnp.concatenate(list(sample), axis=1)
  return loss, router.Load(tokens=tokens, sample=sample), told, grads


def _summed(load):
  """The load of all devices."""
  tokens_NX, sample = mesh.total(load.tokens), _from_all(load.sample)
  return load._replace(tokens=tokens_NX, sample=sample)


def _from_all(sample_NSX):
  """The samples of all devices, one after another; the order has no meaning."""
  n = math.prod(mesh.sizes().values())
  if n == 1 or not sample_NSX.size:
    return sample_NSX
  layers, size, classes = sample_NSX.shape
  index = jax.lax.axis_index(tuple(mesh.sizes()))
  all_NSX = jax.lax.dynamic_update_slice_in_dim(
    jnp.zeros((layers, n * size, classes)), sample_NSX, index * size, axis=1
  )
  return mesh.total(all_NSX)


def _interleave(batch, parts):
  """[B, ...] -> [parts, B / parts, ...]; no row moves to another device."""
  return jax.tree.map(
    lambda a: jnp.swapaxes(
      a.reshape(a.shape[0] // parts, parts, *a.shape[1:]), 0, 1
    ),
    batch,
  )
