# SPDX-License-Identifier: Apache-2.0
"""How well a model predicts a text."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from zaya_jax import config as config_lib
from zaya_jax.model import losses, zaya
from zaya_jax.parallel import batch as batch_lib
from zaya_jax.parallel import mesh

_ROWS = mesh.spec('batch', 'length')


def make_eval_step(
  config: config_lib.ModelConfig, context_mode: str = 'gather'
) -> Callable[[Any, Any, dict[str, jax.Array]], tuple[jax.Array, jax.Array]]:
  """(params, buffers, batch) -> sums of nats and of counting tokens."""

  def local(params, buffers, batch):
    model = zaya.bind(config, params, buffers)
    nats, _ = losses.next_token(model, batch, context_mode)
    counting = jnp.sum(batch['weights'], dtype=jnp.float32)
    return mesh.total((nats, counting))

  def eval_step(params, buffers, batch):
    # Whole, of a file, or the parts of a run: each layer gathers those.
    return mesh.on_each(
      local,
      in_specs=(mesh.specs_of(params), P(), _ROWS),
      out_specs=(P(), P()),
    )(params, buffers, batch)

  return eval_step


def score(
  eval_step: Callable[..., tuple[jax.Array, jax.Array]],
  device_mesh: jax.sharding.Mesh,
  params: Any,
  buffers: Any,
  batches: Iterable[dict[str, np.ndarray]],
) -> tuple[float, float]:
  """Sums over batches: (nats, tokens that count); arguments as of `sums`."""
  nats, tokens = sums(eval_step, device_mesh, params, buffers, batches)
  return nats, tokens


def sums(
  eval_step: Callable[..., tuple[jax.Array, ...]],
  device_mesh: jax.sharding.Mesh,
  params: Any,
  buffers: Any,
  batches: Iterable[dict[str, np.ndarray]],
) -> list[float]:
  """Sums over batches of what a step gives.

  Args:
    eval_step: as of `make_eval_step`, jitted.
    device_mesh: where to put the batches.
    params: of the model.
    buffers: of the model.
    batches: of `pipelines.loader`, all of one shape.
  """
  found = []
  for batch in batches:
    placed = batch_lib.put_batch(device_mesh, batch)
    # One at a time: XLA:CPU gives threads to all at once, and those of some
    # devices wait for devices that get none.
    if found:
      jax.block_until_ready(found[-1])
    found.append(eval_step(params, buffers, placed))
  return np.array(jax.device_get(found), np.float64).sum(axis=0).tolist()


def bits_per_byte(nats_per_token: float, bytes_per_token: float) -> float:
  """The loss in a unit that does not depend on the tokenizer."""
  return nats_per_token / math.log(2) / bytes_per_token


def mean(
  texts: Sequence[Mapping[str, float]], weights: Sequence[float]
) -> dict[str, float]:
  """The weighted mean of each number that all texts have."""
  return {
    name: float(np.average([text[name] for text in texts], weights=weights))
    for name in texts[0]
    if all(name in text for text in texts)
  }


def read_text(path: str) -> str:
  """The text of `--eval.text`.

  Raises:
    UsageError: if there is none.
  """
  try:
    with open(path, encoding='utf-8', newline='') as file:
      text = file.read()
  except (OSError, UnicodeDecodeError) as error:
    raise config_lib.UsageError(
      f'--eval.text={path} cannot be read: {error}.'
    ) from error
  if not text:
    raise config_lib.UsageError(
      f'--eval.text={path} is empty; name a file with text.'
    )
  return text
