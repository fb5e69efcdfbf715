# SPDX-License-Identifier: Apache-2.0
"""moved.json: what an adapter changes of where tokens go, on held-out text.

Axis letters: N layers, E experts, X router classes (the skip class last).
"""

import json
import pathlib
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from zaya_jax import config as config_lib
from zaya_jax.inference import score
from zaya_jax.model import lora, zaya
from zaya_jax.parallel import mesh
from zaya_jax.runtime import durable, processes

FILE_NAME = 'moved.json'
_LISTED = 10
_ROWS = mesh.spec('batch', 'length')


def write(
  config: config_lib.Config,
  device_mesh: jax.sharding.Mesh,
  params: dict[str, Any],
  buffers: dict[str, Any],
  batches: Iterable[dict[str, np.ndarray]],
) -> str:
  """Writes the file into the run directory; returns a line about it.

  Args:
    config: of the run.
    device_mesh: of its devices.
    params: of `lora.join`; without the adapter they are the base.
    buffers: of both.
    batches: of held-out text.
  """
  step = jax.jit(make_step(config))
  loads = np.array(score.sums(step, device_mesh, params, buffers, batches))
  found = compare(*loads)
  if processes.process() == 0:
    path = pathlib.Path(config.run_dir, FILE_NAME)
    durable.replace(path, (json.dumps(found) + '\n').encode())
  (first, *_) = found['most']
  return (
    f'the adapter sends {max(found["moved"]):.1%} of the held-out tokens '
    f'to other experts, net, in the layer where it is most; layer '
    f'{first["layer"]}, expert {first["expert"]}: {first["base"]:.1%} -> '
    f'{first["tuned"]:.1%} ({FILE_NAME})'
  )


def compare(base_NX: np.ndarray, tuned_NX: np.ndarray) -> dict[str, Any]:
  """What the file holds.

  Args:
    base_NX: tokens that chose each class without the adapter.
    tuned_NX: the same tokens with it.

  Returns:
    tokens; base and tuned: [N][X] shares of the tokens; moved: [N] half the sum
    of the differences, the share that would have to change its class to make
    one of the other; most: the classes whose share changed most.
  """
  total = max(float(base_NX[0].sum()), 1.0)
  base_NX, tuned_NX = base_NX / total, tuned_NX / total
  apart_NX = np.abs(tuned_NX - base_NX)
  order = np.argsort(-apart_NX, axis=None, kind='stable')[:_LISTED]
  places = zip(*np.unravel_index(order, apart_NX.shape), strict=True)
  return {
    'tokens': int(total),
    'base': np.round(base_NX, 5).tolist(),
    'tuned': np.round(tuned_NX, 5).tolist(),
    'moved': np.round(apart_NX.sum(axis=1) / 2, 5).tolist(),
    'most': [
      {
        'layer': int(n),
        'expert': int(x),
        'base': round(float(base_NX[n, x]), 5),
        'tuned': round(float(tuned_NX[n, x]), 5),
      }
      for n, x in places
    ],
  }


def make_step(config):
  """(params, buffers, batch) -> [2, N, X] tokens by class: base, tuned."""

  def local(params, buffers, batch):
    base = {key: part for key, part in params.items() if key != lora.KEY}
    loads = [
      zaya.bind(config.model, tree, buffers)
      .features(
        batch['tokens'],
        segment_ids=batch['segment_ids'],
        positions=batch['positions'],
        context_mode=config.mesh.context_mode,
      )
      .load.tokens
      for tree in (base, params)
    ]
    return mesh.total(jnp.stack(loads))

  def step(params, buffers, batch):
    return mesh.on_each(
      local,
      in_specs=(mesh.specs_of(params), P(), _ROWS),
      out_specs=P(),
    )(params, buffers, batch)

  return step
