# SPDX-License-Identifier: Apache-2.0
"""`ops.residual_rms_norm` in Triton: each row is read once, forward and back.

A program takes every n-th row. Going back it keeps its part of the vectors'
gradients in registers.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from ops import dispatch
from ops.residual_rms_norm import api
from ops.triton import launch
from ops.triton.backend import plgpu

# Of a row in one thread: 16 bytes at once in float32, 8 in bfloat16. With
# fewer, narrow rows are read in pieces of 2 and 4 bytes (65,536 rows of 512 on
# an H200: 0.78 ms forward and back instead of 0.28); with more, bfloat16 and
# float32 are laid out differently over the threads, and change places through
# shared memory.
_NUMBERS = 4
_MOST_THREADS = 512
_LANES = {'cuda': 32, 'rocm': 64}  # Of a warp.
# Programs that run at a time, forward, back, and back where the branch is taken
# from other rows, if each has all threads: on each of the 132 multiprocessors
# of an H200 two, and as many as 65,536 registers are enough for, 80 and 100 a
# thread; on the 304 of an MI300X four and two.
_PROCESSORS = {'cuda': 132, 'rocm': 304}
_FULL = {'cuda': (2.0, 1.6, 1.25), 'rocm': (4.0, 2.0, 2.0)}
# Longer rows of a branch in other rows read the vectors again each time: they
# do not fit beside the sums (16,384 rows of 2,048: 0.21 instead of 0.24 ms).
_HELD = 1024
_LARGEST = 8192  # Longer rows do not fit in the registers of 512 threads.


def unsupported(branch_TD, x_TD, *_, **__) -> str | None:
  """Why not."""
  if x_TD.size == 0:
    return 'there are no rows'
  if (size := max(branch_TD.size, x_TD.size)) >= 2**31:
    return f'{size} numbers are more than 32 bits can count'
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
  shape = inputs[1].shape
  results = (
    jax.ShapeDtypeStruct(shape, jnp.float32),
    jax.ShapeDtypeStruct(shape, dtype),
    jax.ShapeDtypeStruct(shape[:1], jnp.float32),
  )
  rows, vectors, (weight_T, row_T, _) = _parts(inputs)
  taken = () if row_T is None else (row_T, weight_T)
  kernel = functools.partial(_forward, eps=eps)
  return _call(kernel, 0, (*rows, vectors, *taken), results)


def _backward_call(options, saved, cotangents):
  del options
  *inputs, rstd_T = saved
  rows, vectors, (weight_T, row_T, spare_Q) = _parts(inputs)
  shape = rows[1].shape
  like = lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype)
  back = 1 if row_T is None else 2
  parts = (_launch(back, shape)[0], 4, shape[-1])
  results = (*map(like, rows), jax.ShapeDtypeStruct(parts, jnp.float32))
  taken: tuple[jax.Array, ...] = ()
  if row_T is not None:
    taken = (row_T, spare_Q, weight_T)
    results = (*results, like(weight_T))
  inputs = (*rows, vectors, rstd_T, *cotangents, *taken)
  return _call(_backward, back, inputs, results)


def _parts(inputs):
  """Branch and stream, the vectors in one array, and where the branch is.

  In one: each part of a stack of layers would be copied for a kernel.
  """
  return inputs[:2], jnp.stack(inputs[2:7]), inputs[7:]


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


def _call(kernel, back, inputs, results):
  shape = inputs[1].shape
  programs, warps = _launch(back, shape)
  return launch.kernel_call(
    functools.partial(kernel, shape=(programs, *shape)),
    'residual_rms_norm',
    (programs,),
    results,
    warps=warps,
  )(*inputs)


def _loop(refs, row_ref, body, carry, shape):
  """`body(carry, values, store)` of each row of this program.

  The next row is on its way while one is worked on, and where the branch has
  the one after it.

  Args:
    refs: of what is loaded: the branch, then [T, D], or [T].
    row_ref: [T] where the branch has each row; None: in order.
    body: values are float32, 0 where there is no row; store(ref, value), and of
      the branch's rows store(ref, value, branch=True).
    carry: the first one.
    shape: programs, rows of all programs, numbers in a row.
  """
  programs, rows, d_model = shape
  first, branch_rows = pl.program_id(0), refs[0].shape[0]
  columns, mask_D = _columns(d_model)

  def find(row):
    if row_ref is None:
      return row
    return plgpu.load(row_ref.at[row], mask=row < rows, other=branch_rows)

  def place(ref, row, end=rows):
    if ref.ndim == 1:  # One number of each row.
      return ref.at[row], row < end
    return ref.at[row, columns], mask_D & (row < end)

  def load(row, found):
    places = [place(refs[0], found, branch_rows)]
    places += [place(ref, row) for ref in refs[1:]]
    return [plgpu.load(at, mask=mask, other=0) for at, mask in places]

  def step(n, state):
    carry, values, found, next_found = state
    row = first + n * programs
    ahead = load(row + programs, next_found)

    def store(ref, value, branch=False):
      at, mask = place(ref, found, branch_rows) if branch else place(ref, row)
      plgpu.store(at, value.astype(ref.dtype), mask=mask)

    carry = body(carry, [v.astype(jnp.float32) for v in values], store)
    return carry, ahead, next_found, find(row + 2 * programs)

  found = find(first)
  state = carry, load(first, found), found, find(first + programs)
  return jax.lax.fori_loop(0, pl.cdiv(rows, programs), step, state)[0]


def _columns(d_model):
  """What a row is loaded by, the next power of two, and which are there."""
  # Indices: a slice may not reach out of an array, whatever its mask.
  columns_D = jnp.arange(pl.next_power_of_2(d_model), dtype=jnp.int32)
  return columns_D, columns_D < d_model


def _vectors(ref):
  """Each row of a matrix."""
  columns, mask = _columns(ref.shape[1])
  return [
    plgpu.load(ref.at[jnp.int32(n), columns], mask=mask, other=0)
    for n in range(ref.shape[0])
  ]


def _forward(*refs, eps, shape):
  branch, x, vectors, *taken, new, normed, inverse = refs
  row, weight = taken or (None, None)
  s_h, b_h, s_r, b_r, scale = _vectors(vectors)

  def body(carry, values, store):
    h, r, *w = values
    h = h * w[0] if w else h
    z = (h + b_h) * s_h + (r + b_r) * s_r
    rstd = jax.lax.rsqrt(jnp.sum(z * z) / shape[-1] + eps)
    store(new, z)
    store(inverse, rstd)
    store(normed, z * rstd * scale)
    return carry

  rows = (branch, x) if weight is None else (branch, x, weight)
  _loop(rows, row, body, 0, shape)


def _backward(*refs, shape):
  branch, x, vectors, inverse, d_new, d_normed, *refs = refs
  rows, row = (branch, x, inverse, d_new, d_normed), None
  if len(refs) > 3:
    row, spare, weight, d_branch, d_x, parts, d_weight = refs
    rows = (*rows, weight)
    _clear(d_branch, spare, shape)
  else:
    d_branch, d_x, parts = refs
  own = _weights(vectors)
  again = row is not None and shape[-1] > _HELD

  def body(sums, values, store):
    s_h, s_r, bias, scale = _weights(vectors) if again else own
    h, r, rstd, dx, dy, *w = values
    made, h = h, h * w[0] if w else h
    unit = (h * s_h + r * s_r + bias) * rstd
    dn = dy * scale
    dz = dx + rstd * (dn - unit * (jnp.sum(dn * unit) / shape[-1]))
    dh = dz * s_h
    if w:
      store(d_weight, jnp.sum(dh * made))
      dh *= w[0]
    store(d_branch, dh, branch=True)
    store(d_x, dz * s_r)
    # Where there is no row all is zero, and adds nothing.
    return [
      a + b for a, b in zip(sums, (dz, dz * h, dz * r, dy * unit), strict=True)
    ]

  sums = _loop(rows, row, body, [jnp.zeros_like(own[0])] * 4, shape)
  columns, mask = _columns(shape[-1])
  for n, part in enumerate(sums):
    place = parts.at[pl.program_id(0), jnp.int32(n), columns]
    plgpu.store(place, part, mask=mask)


def _weights(vectors_ref):
  """What branch, stream, neither and the norm are multiplied by."""
  s_h, b_h, s_r, b_r, scale = _vectors(vectors_ref)
  return s_h, s_r, b_h * s_h + b_r * s_r, scale


def _clear(ref, spare_ref, shape):
  """Zeroes the rows that are listed, those of this program."""
  programs, _, d_model = shape
  columns, mask = _columns(d_model)
  rows, count = ref.shape[0], spare_ref.shape[0]
  first = pl.program_id(0)

  def step(n, carry):
    index = first + n * programs
    row = plgpu.load(spare_ref.at[index], mask=index < count, other=rows)
    nothing = jnp.zeros(columns.shape, ref.dtype)
    plgpu.store(ref.at[row, columns], nothing, mask=mask & (row < rows))
    return carry

  jax.lax.fori_loop(0, pl.cdiv(count, programs), step, 0)
