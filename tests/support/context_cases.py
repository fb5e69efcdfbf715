# SPDX-License-Identifier: Apache-2.0
"""Sharded decoding beside the same attention on one device."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from ops.attention import reference

B, H, K, C = 2, 8, 2, 16
ROWS = 64  # Of the whole cache: 32, 16 or 8 on each of 2, 4 or 8 devices.
ALL = 10**6  # A window that hides nothing.

# Queries, row of the first one, window, tokens of padding before each sequence.
CASES = {
  'first_token_all_other_devices_empty': (1, 0, ALL, (0, 0)),
  'half_of_the_devices_empty': (1, 31, ALL, (0, 0)),
  'first_row_of_a_shard': (1, 32, ALL, (0, 0)),
  'last_row_of_all': (1, 63, ALL, (0, 0)),
  'queries_on_both_sides_of_a_border': (5, 29, ALL, (0, 0)),
  'window_over_a_border': (1, 33, 4, (0, 0)),
  'window_of_one': (5, 30, 1, (0, 0)),
  'window_leaves_early_devices_empty': (16, 48, 20, (0, 0)),
  'padding': (1, 50, ALL, (0, 11)),
  'padding_leaves_a_device_empty': (3, 45, ALL, (33, 7)),
  'padding_and_window': (4, 40, 9, (35, 3)),
}


def arrays(length, padding=(0, 0), dtype=jnp.float32, scale=2.0):
  """q [B, L, H, C], k and v [B, K, ROWS, C], valid [B, ROWS]."""
  rng = np.random.default_rng(length)
  shapes = (B, length, H, C), (B, K, ROWS, C), (B, K, ROWS, C)
  q, k, v = (
    jax.device_put((rng.normal(size=shape) * factor).astype(dtype))
    for shape, factor in zip(shapes, (scale, 1, 1), strict=True)
  )
  valid = np.arange(ROWS)[None] >= np.asarray(padding)[:, None]
  return q, k, v, jax.device_put(valid)


@jax.jit
def expected(q, k, v, valid, offset, window):
  """[B, L, H, C] on one device."""
  return reference.attention(
    q,
    k.swapaxes(1, 2),
    v.swapaxes(1, 2),
    q_segments_BL=jnp.ones(q.shape[:2], bool),
    k_segments_BS=valid,
    offset=offset,
    window=window,
  )


def mesh(devices):
  return jax.make_mesh(
    (devices,),
    ('context',),
    axis_types=(jax.sharding.AxisType.Explicit,),
    devices=jax.devices()[:devices],
  )


def sharded(attention, devices, check_vma=True):
  """`attention` with the arguments of `expected`, jitted for `devices`."""

  def local(q, k, v, valid, offset, window):
    return attention(
      q, k, v, axis='context', offset=offset, window=window, valid_BS=valid
    )

  rows, mask = P(None, None, 'context'), P(None, 'context')
  in_specs = (P(), rows, rows, mask, P(), P())
  return on_devices(local, devices, in_specs, P(), check_vma)


def on_devices(local, devices, in_specs, out_specs, check_vma=True):
  """`local` under shard_map, jitted; it places its arguments by itself."""
  on = mesh(devices)
  mapped = jax.shard_map(
    local, mesh=on, in_specs=in_specs, out_specs=out_specs, check_vma=check_vma
  )

  @jax.jit
  def run(*args):
    return mapped(
      *(
        jax.reshard(jnp.asarray(a), NamedSharding(on, spec))
        for a, spec in zip(args, in_specs, strict=True)
      )
    )

  return run
