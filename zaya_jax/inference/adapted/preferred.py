# SPDX-License-Identifier: Apache-2.0
"""How a model does on pairs of answers that are held out."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from zaya_jax import config as config_lib
from zaya_jax.inference import score
from zaya_jax.model.losses import preferences
from zaya_jax.parallel import mesh

# Under the names of metrics.jsonl.
NAMES = tuple(
  f'val/{name}' for name in ('dpo/loss', *preferences.TOLD)
)  # fmt: skip
_ROWS = mesh.spec('batch', 'length')


def make_eval_step(config: config_lib.Config) -> Callable[..., Any]:
  """(both, buffers, batch) -> sums over pairs, as `NAMES`, and their count.

  Of `both` the first are parameters, the second those of the reference; None:
  they are the first without their adapter.

  Args:
    config: of the run.
  """

  def local(both, buffers, batch):
    params, reference = both
    cost, _, told = preferences.compare(
      config.model, config.dpo, params, reference, buffers, batch
    )
    count = jnp.sum(preferences.exist(batch))
    return mesh.total((cost, *(told[n] for n in preferences.TOLD), count))

  def eval_step(both, buffers, batch):
    return mesh.on_each(
      local,
      in_specs=(mesh.specs_of(both), P(), _ROWS),
      out_specs=(P(),) * (len(NAMES) + 1),
    )(both, buffers, batch)

  return eval_step


def held_out(
  eval_step: Callable[..., Any],
  device_mesh: jax.sharding.Mesh,
  both: tuple[Any, Any],
  buffers: Any,
  batches: Iterable[dict[str, np.ndarray]],
) -> dict[str, float]:
  """Means over pairs, by `NAMES`; arguments as of `score.sums`."""
  *sums, count = score.sums(eval_step, device_mesh, both, buffers, batches)
  means = (total / max(count, 1.0) for total in sums)
  return dict(zip(NAMES, means, strict=True))
