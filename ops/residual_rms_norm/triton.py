# SPDX-License-Identifier: Apache-2.0
"""`ops.residual_rms_norm` in Triton: each row is read once, forward and back.

A program takes every n-th row. Going back it keeps its part of the vectors'
gradients in registers.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from ops import dispatch
from ops.residual_rms_norm import api
from ops.triton import launch

# Of a row in one thread: 16 bytes at once in float32, 8 in bfloat16. With
# fewer, narrow rows are read in pieces of 2 and 4 bytes (65,536 rows of 512 on
# an H200: 0.78 ms forward and back instead of 0.28); with more, bfloat16 and
# float32 are laid out differently over the threads, and change places through
# shared memory.
_NUMBERS = 4
_MOST_THREADS = 512
_LANES = {'cuda': 32, 'rocm': 64}  # Of a warp.
# Programs that run at a time, forward and back, if each has all threads: on
# each of the 132 multiprocessors of an H200 two, and as many as 65,536
# registers are enough for, 80 a thread; on the 304 of an MI300X four and two.
_PROCESSORS = {'cuda': 132, 'rocm': 304}
_FULL = {'cuda': (2.0, 1.6), 'rocm': (4.0, 2.0)}
_LARGEST = 8192  # Longer rows do not fit in the registers of 512 threads.


def unsupported(branch_TD, x_TD, *_, **__) -> str | None:
  """Why not."""
  if x_TD.size == 0:
    return 'there are no rows'
  if x_TD.size >= 2**31:
    return f'{x_TD.size} numbers are more than 32 bits can count'
  if x_TD.shape[-1] > _LARGEST:
    return f'rows of {x_TD.shape[-1]} are longer than {_LARGEST}'
  return None


def residual_rms_norm(
  *inputs: jax.Array, eps: float, dtype: jnp.dtype
) -> tuple[jax.Array, jax.Array]:
  """See `ops.residual_rms_norm`."""
  return api.merge_and_norm(_KERNELS, (eps, dtype), *inputs)


def _forward_call(options, *inputs):
  eps, dtype = options
  shape = inputs[0].shape
  results = (
    jax.ShapeDtypeStruct(shape, jnp.float32),
    jax.ShapeDtypeStruct(shape, dtype),
    jax.ShapeDtypeStruct(shape[:1], jnp.float32),
  )
  kernel = functools.partial(_forward, eps=eps)
  return _call(kernel, _launch(0, shape), inputs, results)


def _backward_call(options, saved, cotangents):
  del options
  branch_TD, x_TD, *_ = saved
  programs, warps = _launch(1, x_TD.shape)
  results = (
    jax.ShapeDtypeStruct(branch_TD.shape, branch_TD.dtype),
    jax.ShapeDtypeStruct(x_TD.shape, x_TD.dtype),
    jax.ShapeDtypeStruct((programs, 4, x_TD.shape[-1]), jnp.float32),
  )
  return _call(_backward, (programs, warps), (*saved, *cotangents), results)


_KERNELS = api.Kernels(_forward_call, _backward_call)


def _launch(back: int, shape: tuple[int, ...]) -> tuple[int, int]:
  """How many programs take [rows, columns], and warps of each."""
  rows, columns = shape
  here = dispatch.platform()
  if here == 'cpu':  # Interpreted: few, each with several rows.
    return min(rows, 3), 1
  threads = pl.next_power_of_2(columns) // _NUMBERS
  threads = min(max(threads, _LANES[here]), _MOST_THREADS)
  at_a_time = int(_FULL[here][back] * _MOST_THREADS / threads)
  return min(rows, _PROCESSORS[here] * at_a_time), threads // _LANES[here]


def _call(kernel, programs_and_warps, inputs, results):
  programs, warps = programs_and_warps
  return launch.kernel_call(
    functools.partial(kernel, shape=(programs, *inputs[0].shape)),
    'residual_rms_norm',
    (programs,),
    results,
    warps=warps,
  )(*inputs)


def _loop(refs, body, carry, shape):
  """`body(carry, values, store)` of each row of this program.

  The next row is on its way while one is worked on.

  Args:
    refs: [T, D], or [T], of what is loaded.
    body: values are float32, 0 where there is no row; store(ref, value).
    carry: the first one.
    shape: programs, rows of all programs, numbers in a row.
  """
  programs, rows, d_model = shape
  first = pl.program_id(0)
  columns, mask_D = _columns(d_model)

  def place(ref, row):
    if ref.ndim == 1:  # One number of each row.
      return ref.at[row], row < rows
    return ref.at[row, columns], mask_D & (row < rows)

  def load(row):
    places = [place(ref, row) for ref in refs]
    return [plgpu.load(at, mask=mask, other=0) for at, mask in places]

  def step(n, state):
    carry, values = state
    row = first + n * programs
    ahead = load(row + programs)

    def store(ref, value):
      at, mask = place(ref, row)
      plgpu.store(at, value.astype(ref.dtype), mask=mask)

    return body(carry, [v.astype(jnp.float32) for v in values], store), ahead

  steps = pl.cdiv(rows, programs)
  return jax.lax.fori_loop(0, steps, step, (carry, load(first)))[0]


def _columns(d_model):
  """What a row is loaded by, the next power of two, and which are there."""
  # Indices: a slice may not reach out of an array, whatever its mask.
  columns_D = jnp.arange(pl.next_power_of_2(d_model), dtype=jnp.int32)
  return columns_D, columns_D < d_model


def _forward(*refs, eps, shape):
  branch, x, *vectors, new, normed, inverse = refs
  columns, mask = _columns(shape[-1])
  s_h, b_h, s_r, b_r, scale = (
    plgpu.load(ref.at[columns], mask=mask, other=0) for ref in vectors
  )

  def body(carry, values, store):
    h, r = values
    z = (h + b_h) * s_h + (r + b_r) * s_r
    rstd = jax.lax.rsqrt(jnp.sum(z * z) / shape[-1] + eps)
    store(new, z)
    store(inverse, rstd)
    store(normed, z * rstd * scale)
    return carry

  _loop((branch, x), body, 0, shape)


def _backward(*refs, shape):
  branch, x, *vectors, inverse, d_new, d_normed, d_branch, d_x, parts = refs
  columns, mask = _columns(shape[-1])
  s_h, b_h, s_r, b_r, scale = (
    plgpu.load(ref.at[columns], mask=mask, other=0) for ref in vectors
  )
  bias = b_h * s_h + b_r * s_r

  def body(sums, values, store):
    h, r, rstd, dx, dy = values
    unit = (h * s_h + r * s_r + bias) * rstd
    dn = dy * scale
    dz = dx + rstd * (dn - unit * (jnp.sum(dn * unit) / shape[-1]))
    store(d_branch, dz * s_h)
    store(d_x, dz * s_r)
    # Where there is no row all is zero, and adds nothing.
    return [
      a + b for a, b in zip(sums, (dz, dz * h, dz * r, dy * unit), strict=True)
    ]

  rows = (branch, x, inverse, d_new, d_normed)
  sums = _loop(rows, body, [jnp.zeros_like(scale)] * 4, shape)
  for n, part in enumerate(sums):
    place = parts.at[pl.program_id(0), jnp.int32(n), columns]
    plgpu.store(place, part, mask=mask)
