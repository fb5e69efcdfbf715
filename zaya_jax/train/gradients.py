# SPDX-License-Identifier: Apache-2.0
"""The loss of a batch over all devices, and its gradients."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from zaya_jax import config as config_lib
from zaya_jax.model import losses, zaya
from zaya_jax.parallel import mesh, partition

Batch = dict[str, jax.Array]
_ROWS = mesh.spec('batch', 'length')


def loss_and_grads(
  config: config_lib.Config,
  params: dict[str, Any],
  buffers: dict[str, Any],
  batch: Batch,
) -> tuple[jax.Array, dict[str, Any], jax.Array]:
  """Mean loss over the counting tokens, its gradients, the router's load."""
  return each_and_sum(config, params, buffers, batch)[:3]


def each_and_sum(
  config: config_lib.Config,
  params: dict[str, Any],
  buffers: dict[str, Any],
  batch: Batch,
) -> tuple[jax.Array, dict[str, Any], jax.Array, jax.Array]:
  """As `loss_and_grads`, and each device's part of the loss, [devices].

  Each device computes its tokens in `--optim.accumulation` parts, one after
  another, and divides by the tokens of the whole batch; so the sum over parts
  and devices is what one large batch gives. Gradients are summed in float32,
  over the devices once, and come divided as the parameters and the optimizer's
  state.

  With one part each layer gathers its matrices, and the sum of its gradients is
  scattered in its backward pass: both are sent while other layers compute. With
  more parts all are gathered before the first and summed after the last.
  """
  shapes = jax.tree.map(
    lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), params
  )

  def local(params, buffers, batch):
    counting = jnp.sum(batch['weights'], dtype=jnp.float32)
    tokens = jnp.maximum(mesh.total(counting), 1.0)

    def loss_fn(params, part):
      model = zaya.bind(config.model, params, buffers)
      nats, load = losses.next_token(model, part, config.mesh.context_mode)
      return nats / tokens, load

    if config.optim.parts > 1:
      narrow = zaya.narrow(config.model)
      params = partition.gather_once(params, shapes, narrow)
    loss, load, grads = _accumulate(
      jax.value_and_grad(loss_fn, has_aux=True),
      zaya.cast_experts(config.model, params),
      batch,
      config.optim.parts,
    )
    grads = partition.sum_gradients(grads, shapes)
    return mesh.total(loss), grads, mesh.total(load), loss[None]

  each = P(tuple(mesh.sizes()))
  return mesh.on_each(
    local,
    in_specs=(mesh.specs_of(params), P(), _ROWS),
    out_specs=(P(), partition.part_specs(params), P(), each),
  )(params, buffers, batch)


def _accumulate(grad_fn, params, batch, parts):
  """Sums of loss, load and gradients over parts of this device's rows."""
  if parts == 1:
    (loss, load), grads = grad_fn(params, batch)
    return loss, load, grads

  def add_part(sums, part):
    (loss, load), grads = grad_fn(params, part)
    return jax.tree.map(jnp.add, sums, (loss, load, grads)), None

  shapes = jax.eval_shape(grad_fn, params, batch)
  (loss, load), grads = jax.tree.map(
    lambda a: jnp.zeros(a.shape, jnp.float32), shapes
  )
  return jax.lax.scan(add_part, (loss, load, grads), _interleave(batch, parts))[
    0
  ]


def _interleave(batch, parts):
  """[B, ...] -> [parts, B / parts, ...]; no row moves to another device."""
  return jax.tree.map(
    lambda a: jnp.swapaxes(
      a.reshape(a.shape[0] // parts, parts, *a.shape[1:]), 0, 1
    ),
    batch,
  )
