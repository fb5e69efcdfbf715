# SPDX-License-Identifier: Apache-2.0
"""Whole rows with packed documents, and functions of them on some devices."""

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

from zaya_jax.parallel import zigzag

B, H, K, C = 2, 4, 2, 8
# Of the spread of the result: float32 sums in another order.
TOLERANCE = 1e-5
CHUNKED = P(None, 'context')


def documents(packing, length, seed=0):
  """[B, length] segments: as the loader packs them, 0 for padding."""
  rng = np.random.default_rng(seed)
  cuts = {
    'one': [[], []],
    'two': [[length // 2 + 1], [length // 4]],
    # Documents shorter than the halo, and borders at and beside chunks.
    'many': [rng.integers(0, length, 9), np.arange(0, length, 3)],
    'padded': [[length // 3], [5]],
  }[packing]
  rows = np.arange(length)
  out = np.stack([1 + (rows[:, None] >= np.asarray(c)).sum(1) for c in cuts])
  if packing == 'padded':
    out[:, length - 3 :] = 0
  return out.astype(np.int32)


def arrays(length, heads, channels, dtype):
  """[B, length, h, channels] for each number of heads; of NumPy."""
  rng = np.random.default_rng(length)
  draw = lambda h: rng.standard_normal((B, length, h, channels), np.float32)
  return [draw(h).astype(dtype) for h in heads]


def spread_error(found, expected):
  """The largest difference, over the root mean square of what is expected."""
  found, expected = np.asarray(found), np.asarray(expected)
  assert found.shape == expected.shape and np.isfinite(found).all()
  return np.abs(found - expected).max() / max(
    np.sqrt(np.mean(expected**2)), 1e-30
  )


def worst(found, expected):
  """The largest `spread_error` of two equal trees."""
  return max(jax.tree.leaves(jax.tree.map(spread_error, found, expected)))


def on_devices(local, n, in_specs, out_specs=CHUNKED, check=True):
  """`local` on n devices; XLA places the arguments. Kernels want no `check`."""
  mesh = jax.make_mesh(
    (n,),
    ('context',),
    axis_types=(jax.sharding.AxisType.Auto,),
    devices=jax.devices()[:n],
  )
  return jax.jit(
    jax.shard_map(
      local,
      mesh=mesh,
      in_specs=in_specs,
      out_specs=out_specs,
      check_vma=check,
    )
  )


def restore(tree, n):
  """Inverse of `zigzag.divide`."""
  return jax.tree.map(
    lambda a: a[:, np.argsort(zigzag.order(a.shape[1], n))], tree
  )


def divided(local, n, *, whole=(), check=True):
  """`local` on n devices as a function of whole rows in natural order.

  Arguments and results [B, L, ...] are put in the order of the devices and
  back; every device gets all of the arguments whose number is in `whole`.
  """

  def run(*args):
    args = [zigzag.divide(a, n) if hasattr(a, 'shape') else a for a in args]
    # Weights are trees, the same on all devices.
    specs = tuple(
      CHUNKED if hasattr(a, 'shape') and i not in whole else P()
      for i, a in enumerate(args)
    )
    return restore(on_devices(local, n, specs, check=check)(*args), n)

  return jax.jit(run)
