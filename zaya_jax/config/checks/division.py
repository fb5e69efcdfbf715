# SPDX-License-Identifier: Apache-2.0
"""Whether the axes of a mesh divide what they are to divide."""

from collections.abc import Mapping

from zaya_jax.config import fields, run


def check(config: run.Config, sizes: Mapping[str, int], experts: int) -> None:
  """Whether the axes of a mesh divide batch, experts and rows.

  Args:
    config: of the run.
    sizes: devices along each axis of the mesh, or a divisor of them.
    experts: of each layer.

  Raises:
    UsageError: naming the first that is not divided, and what would be.
  """
  across = sizes['replica'] * sizes['fsdp'] * sizes['expert']
  parts = across * config.optim.parts
  batch, length = config.data.batch_size, config.data.seq_len
  if batch % parts:
    raise fields.UsageError(
      f'--data.batch_size={batch} must be a multiple of {parts}: {across} '
      'groups of devices times --optim.accumulation='
      f'{config.optim.parts}; for example '
      f'{parts * max(1, batch // parts)}, or use fewer devices.'
    )
  if experts % sizes['expert']:
    raise fields.UsageError(
      f'--mesh.expert={sizes["expert"]} does not divide '
      f'--model.num_experts={experts}; choose one of '
      f'{fields.divisors(experts)}.'
    )
  chunks = 2 * sizes['context']  # Each device holds two (`parallel.zigzag`).
  if chunks > 2 and length % chunks:
    raise fields.UsageError(
      f'--mesh.context={sizes["context"]} cuts a sequence into {chunks} equal '
      f'chunks and --data.seq_len={length} is no multiple of {chunks}; change '
      'either.'
    )
