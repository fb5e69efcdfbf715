# SPDX-License-Identifier: Apache-2.0
"""What the kernels of one token share: vectors, rows of matrices, norms.

Reading matrices is all the time. So each program has a few rows of a matrix as
[out, in], and computes the vector they multiply itself: a norm over a few
thousand numbers takes less time than a kernel before.

Tiles are powers of two, and masked where arrays are not.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from ops import dispatch
from ops.triton import launch
from ops.triton.backend import plgpu

# Of each kernel, as they were fastest on an H200: programs among which rows are
# divided (a CPU, where tests are, has few), and warps of a program.
_PROGRAMS = {
  'project': 384,
  'out': 256,
  'state': 128,
  'hidden': 256,
  'gate_up': 512,
  'down': 1024,
}
_INTERPRETED = 3
_WARPS = {
  'project': 8,
  'convolve': 2,
  'attend': 8,
  'out': 4,
  'state': 8,
  'hidden': 1,
  'gate_up': 4,
  'down': 4,
}


def call(
  kernel: Callable[..., None],
  name: str,
  programs: int | tuple[int, int],
  results: Any,
  aliases: dict[int, int] | None = None,
) -> Callable[..., Any]:
  """The call of a kernel with so many programs."""
  grid = programs if isinstance(programs, tuple) else (programs,)
  return launch.kernel_call(
    kernel, f'one_{name}', grid, results, warps=_WARPS[name], aliases=aliases
  )


def share(name: str, rows: int) -> tuple[int, int]:
  """Rows of each program of a kernel, and how many programs that makes."""
  interpreted = dispatch.platform() == 'cpu'
  programs = _INTERPRETED if interpreted else _PROGRAMS[name]
  each = pl.cdiv(rows, min(programs, rows))
  return each, pl.cdiv(rows, each)


def own(rows: int, each: int) -> tuple[jax.Array, jax.Array]:
  """The rows of this program, and which of them there are."""
  index = jnp.arange(pl.next_power_of_2(each), dtype=jnp.int32)
  row = pl.program_id(0) * each + index
  return row, (index < each) & (row < rows)


def span(size: int) -> tuple[jax.Array, jax.Array]:
  """All indices of an axis, and which of them there are."""
  index = jnp.arange(pl.next_power_of_2(size), dtype=jnp.int32)
  return index, index < size


def load(ref: Any, place: Sequence[Any], mask: jax.Array) -> jax.Array:
  """Float32; 0 where the mask is not."""
  found = plgpu.load(ref.at[tuple(place)], mask=mask, other=0)
  return found.astype(jnp.float32)


def store(ref: Any, place: Sequence[Any], value: Any, mask: jax.Array) -> None:
  """In the type of what is stored to."""
  plgpu.store(ref.at[tuple(place)], value.astype(ref.dtype), mask=mask)


def vector(ref: Any) -> jax.Array:
  """All of a vector."""
  index, mask = span(ref.shape[0])
  return load(ref, (index,), mask)


def matrix(
  ref: Any, row: jax.Array, mask: jax.Array, *lead: jax.Array
) -> jax.Array:
  """Some rows of the last two axes."""
  column, there = span(ref.shape[-1])
  place = (*lead, row[:, None], column[None])
  return load(ref, place, mask[:, None] & there[None])


def product(tile_FD: jax.Array, x_D: jax.Array) -> jax.Array:
  """[F] float32."""
  return jnp.sum(tile_FD * x_D[None], axis=1)


def rounded(x: jax.Array, dtype: Any) -> jax.Array:
  """Float32 with the numbers of `dtype` alone."""
  return x.astype(dtype).astype(jnp.float32)


def norm(
  x_D: jax.Array, scale_D: jax.Array, size: int, eps: float
) -> jax.Array:
  """RMSNorm of a vector of `size` numbers, zeros behind."""
  rstd = jax.lax.rsqrt(jnp.sum(x_D * x_D) / size + eps)
  return x_D * rstd * scale_D


def merge(
  vectors_ref: Any, x_ref: Any, row: jax.Array, mask: jax.Array
) -> Callable[[jax.Array], jax.Array]:
  """Of a branch the residual stream with it: see `residual_rms_norm`.

  Args:
    vectors_ref: [5, D], of which the last is that of the norm behind.
    x_ref: [D].
    row: which of D.
    mask: which of these there are.
  """
  s_h, b_h, s_r, b_r = (
    load(vectors_ref, (jnp.int32(n), row), mask) for n in range(4)
  )
  stream = (load(x_ref, (row,), mask) + b_r) * s_r
  return lambda branch: (branch + b_h) * s_h + stream


def first() -> jax.Array:
  """Whether this is the first program, which writes what is written once."""
  return pl.program_id(0) == 0
