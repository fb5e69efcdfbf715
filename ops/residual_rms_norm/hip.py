# SPDX-License-Identifier: Apache-2.0
"""`ops.residual_rms_norm` in HIP: ops/native/residual_rms_norm.hip."""

import jax
import jax.numpy as jnp
import numpy as np

from ops import dispatch, native
from ops.residual_rms_norm import api

LONGEST = 4096  # Of a row: 8 numbers of each of 512 threads.
# Blocks, forward and back. On each of the 304 CU of an MI300X four and two of
# those that its registers have room for, 7 and 3: with a row ahead each that is
# 48 KiB on the way, three times what HBM brings in a microsecond, and what two
# blocks leave of the vectors' gradients stays in the cache: 20 MB.
_BLOCKS = {'rocm': (1216, 608), 'cuda': (528, 264), 'cpu': (3, 3)}


def unsupported(
  branch_TD: jax.Array, x_TD: jax.Array, *more, dtype: jnp.dtype, **_
) -> str | None:
  """Why it cannot run."""
  if reason := native.unavailable('residual_rms_norm'):
    return reason
  if more[5] is not None:
    return 'it takes no branch in another order'
  if x_TD.dtype != jnp.float32:
    return f'the residual stream is {x_TD.dtype}, not float32'
  if {branch_TD.dtype.name, jnp.dtype(dtype).name} not in (
    {'float32'},
    {'bfloat16'},
  ):
    return (
      f'the branch is {branch_TD.dtype} and the result {jnp.dtype(dtype)}, '
      'not both float32 or bfloat16'
    )
  if x_TD.shape[-1] > LONGEST:
    return f'rows of {x_TD.shape[-1]} are longer than {LONGEST}'
  return None


def residual_rms_norm(
  *inputs: jax.Array, eps: float, dtype: jnp.dtype
) -> tuple[jax.Array, jax.Array]:
  """See `ops.residual_rms_norm`."""
  del dtype  # That of the branch.
  branch_TD, x_TD, *vectors = inputs[:7]
  columns = x_TD.shape[-1]
  # Zeros make rows of 16-byte pieces; their products are zero as well.
  pad = lambda a: jnp.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, -columns % 8)])
  vectors = [pad(v.astype(jnp.float32)) for v in vectors]
  new, normed = api.merge_and_norm(
    *(_KERNELS, (eps, columns), pad(branch_TD), pad(x_TD), *vectors),
    *inputs[7:],
  )
  return new[:, :columns], normed[:, :columns]


def _forward(options, *inputs):
  eps, columns = options
  branch_TD, rows = inputs[0], inputs[0].shape[0]
  return native.call(
    'residual_rms_norm',
    (
      jax.ShapeDtypeStruct(branch_TD.shape, jnp.float32),
      jax.ShapeDtypeStruct(branch_TD.shape, branch_TD.dtype),
      jax.ShapeDtypeStruct((rows,), jnp.float32),
    ),
    *inputs[:7],
    eps=np.float32(eps),
    columns=np.int32(columns),
    blocks=np.int32(_blocks(0, rows)),
  )


def _backward(options, saved, cotangents):
  _, columns = options
  branch_TD, x_TD, *_ = saved = (*saved[:7], saved[-1])
  rows, width = x_TD.shape
  like = lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype)
  parts = jax.ShapeDtypeStruct((_blocks(1, rows), 4, width), jnp.float32)
  return native.call(
    'residual_rms_norm_back',
    (like(branch_TD), like(x_TD), parts),
    *saved,
    *cotangents,
    aliases={len(saved): 1},  # The stream's gradient where its gradient was.
    columns=np.int32(columns),
  )


_KERNELS = api.Kernels(_forward, _backward)


def _blocks(back, rows):
  return min(rows, _BLOCKS[dispatch.platform()][back])
