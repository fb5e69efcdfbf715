# SPDX-License-Identifier: Apache-2.0
"""What decoding keeps of the tokens it has seen."""

import dataclasses

import jax
import jax.numpy as jnp

from zaya_jax.parallel.context import tree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Cache:
  """The state of a batch.

  The large arrays are one for each layer, so that each is updated in place;
  the small ones are one for all layers, so that few are copied.

  Attributes:
    k: of each layer [B, K, S, C] keys, rotated.
    v: of each layer [B, K, S, C] values.
    conv: [N, B, conv_context, d_qk] last queries and keys before convolution.
    delayed: [N, B, K * C / 2] delayed value projection of the last token.
    length: int32, where the next token goes: a scalar, the same for every row
      of a batch that is padded on the left, or [B] for rows that are filled
      apart, whose new tokens are padded on the right.
    valid: [B, S] bool, False for padding.
    position: [B] int32, the position of the next token of each row.
  """

  k: tuple[jax.Array, ...]
  v: tuple[jax.Array, ...]
  conv: jax.Array
  delayed: jax.Array
  length: jax.Array
  valid: jax.Array
  position: jax.Array


# Where the rows of the batch are, if not first.
_ROWS = {'conv': 1, 'delayed': 1}


def rows(cache: Cache, indices: jax.Array) -> Cache:
  """Some rows of a cache whose rows are filled apart, as a cache."""

  def take(name, leaf):
    axis = _ROWS.get(name, 0)
    if len(indices) == 1:
      return jax.lax.dynamic_slice_in_dim(leaf, indices[0], 1, axis)
    return jnp.take(leaf, indices, axis, mode='clip')

  return _by_name(take, cache)


def put_rows(cache: Cache, some: Cache, indices: jax.Array) -> Cache:
  """The cache with others in place of some rows.

  Args:
    cache: whose rows are filled apart.
    some: of `rows`.
    indices: none twice; one beyond the last row is dropped, where there are
      several.
  """

  def put(name, leaf, new):
    axis = _ROWS.get(name, 0)
    if len(indices) == 1:  # XLA for CPUs copies all rows to change some.
      return jax.lax.dynamic_update_slice_in_dim(leaf, new, indices[0], axis)
    where = (slice(None),) * axis + (indices,)
    return leaf.at[where].set(new, mode='drop', unique_indices=True)

  return _by_name(put, cache, some)


def keep(
  pool: Cache,
  cache: Cache,
  slot: jax.Array,
  begin: jax.Array,
  rows: jax.Array,
) -> Cache:
  """The pool with what a slot holds of a piece, which it was read last.

  Args:
    pool: rows of a few tokens each, as many as divide a piece.
    cache: whose rows are filled apart.
    slot: int32, a row of `cache`.
    begin: int32, the first token of the piece.
    rows: [R] int32, those of `pool` for its tokens; the last one has what the
      token behind the piece needs of it.
  """
  unit = pool.valid.shape[1]

  def columns(old, new):
    _, heads, _, channels = new.shape
    new = jax.lax.dynamic_slice(
      new, (slot, 0, begin, 0), (1, heads, len(rows) * unit, channels)
    )
    new = new.reshape(heads, len(rows), unit, channels).swapaxes(0, 1)
    return old.at[rows].set(new, mode='drop', unique_indices=True)

  last = lambda old, new: old.at[:, rows[-1]].set(new[:, slot])
  return dataclasses.replace(
    pool,
    k=tuple(map(columns, pool.k, cache.k)),
    v=tuple(map(columns, pool.v, cache.v)),
    conv=last(pool.conv, cache.conv),
    delayed=last(pool.delayed, cache.delayed),
  )


def restore(
  cache: Cache,
  pool: Cache,
  slot: jax.Array,
  begin: jax.Array,
  end: jax.Array,
  rows: jax.Array,
) -> Cache:
  """The cache with a piece from the pool in a slot, as if it had been read.

  Args:
    cache: whose rows are filled apart; it has what is before the piece.
    pool: of `keep`.
    slot: int32, a row of `cache`.
    begin: int32, the first token of the piece.
    end: int32, the token behind it.
    rows: [R] int32, of `pool`.
  """

  def columns(old, new):
    _, heads, unit, channels = new.shape
    new = new[rows].swapaxes(0, 1)
    new = new.reshape(1, heads, len(rows) * unit, channels)
    return jax.lax.dynamic_update_slice(old, new, (slot, 0, begin, 0))

  last = lambda old, new: old.at[:, slot].set(new[:, rows[-1]])
  return Cache(
    k=tuple(map(columns, cache.k, pool.k)),
    v=tuple(map(columns, cache.v, pool.v)),
    conv=last(cache.conv, pool.conv),
    delayed=last(cache.delayed, pool.delayed),
    length=cache.length.at[slot].set(end),
    valid=cache.valid.at[slot].set(jnp.arange(cache.valid.shape[1]) < end),
    position=cache.position.at[slot].set(end),
  )


def _by_name(function, *caches):
  """Applies a function of a name and the arrays of that name."""
  return Cache(
    **{
      f.name: jax.tree.map(
        lambda *leaves, name=f.name: function(name, *leaves),
        *(getattr(cache, f.name) for cache in caches),
      )
      for f in dataclasses.fields(Cache)
    }
  )


def write(
  axis: str | None,
  old: jax.Array,
  new: jax.Array,
  offset: jax.Array,
  dim: int,
) -> jax.Array:
  """`old` with `new` at row `offset` of dimension `dim`.

  Args:
    axis: the mesh axis over which the rows are divided; None: they are not.
    old: an array of the cache, batch first.
    new: the same shape, but for the rows.
    offset: as `Cache.length`; there must be room.
    dim: the dimension of the rows.
  """
  if axis:
    return tree.write(old, new, offset, axis=axis, dim=dim)
  new = new.astype(old.dtype)
  update = jax.lax.dynamic_update_slice_in_dim
  if offset.ndim:
    update, dim = jax.vmap(update, in_axes=(0, 0, 0, None)), dim - 1
  return update(old, new, offset, dim)


def tail(past_BTX: jax.Array, end_B: jax.Array | None, size: int) -> jax.Array:
  """[B, size, X]: what the next token needs of a history.

  Args:
    past_BTX: `size` samples from before, then the new ones.
    end_B: int32, how many of the new ones each row has; None: all.
    size: how far the next token looks back.
  """
  if end_B is None:
    return past_BTX[:, past_BTX.shape[1] - size :]
  cut = lambda a, i: jax.lax.dynamic_slice_in_dim(a, i, size)
  return jax.vmap(cut)(past_BTX, end_B)
