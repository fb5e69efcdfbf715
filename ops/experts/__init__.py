# SPDX-License-Identifier: Apache-2.0
"""Top-1 mixture of SwiGLU experts: permute, multiply by group, unpermute."""

from typing import Any

import jax

from ops import dispatch
from ops.experts import api, few, hip, hopper, packed, ragged, triton, xla
from ops.experts import sink as sink_lib
from ops.experts.sorting import permute, sort_by_expert
from ops.triton import backend

__all__ = (
  'expert_mlp',
  'expert_mlp_in_place',
  'expert_mlp_rows',
  'permute',
  'sort_by_expert',
)

ENGINES = (
  dispatch.Engine('hip', hip.expert_mlp, hip.unsupported, ('rocm',)),
  dispatch.Engine(
    'hopper', hopper.expert_mlp, hopper.unsupported, platforms=('cuda',)
  ),
  backend.engine(triton.expert_mlp, triton.unsupported, dispatch.wide),
  dispatch.Engine('ragged', ragged.expert_mlp, ragged.unsupported, ()),
  dispatch.Engine('xla', xla.expert_mlp, xla.unsupported),
)


def expert_mlp(
  x_TD: jax.Array,
  expert_T: jax.Array,
  gate_up_EDF: jax.Array,
  down_EFD: jax.Array,
  sink: sink_lib.Sink | None = None,
) -> Any:
  """Applies to each token the SwiGLU expert that it chose.

  Dropless with static shapes; the work follows the number of tokens, not the
  number of experts. For token t with expert e:
  `y = (silu(x @ gate) * (x @ up)) @ down`, where `gate | up = gate_up[e]`.

  Args:
    x_TD: [T, D] tokens.
    expert_T: [T] int32 in [0, E]; the class E has no expert and yields zeros.
    gate_up_EDF: [E, D, 2F] both input matrices of each expert, gate first.
    down_EFD: [E, F, D] output matrix of each expert.
    sink: where the gradients of the matrices go; None: to the matrices.

  Returns:
    [T, D] in the type of `x_TD`; with a sink also its stacks, to be handed on.

  Raises:
    ValueError: if the shapes do not fit each other.
  """
  _check(x_TD, expert_T, gate_up_EDF, down_EFD)
  inputs = x_TD, expert_T, gate_up_EDF, down_EFD
  run = dispatch.select('experts', ENGINES, *inputs)
  return run(*inputs) if sink is None else run(*inputs, sink)


def expert_mlp_in_place(
  *inputs: jax.Array, sink: sink_lib.Sink | None = None
) -> api.Made:
  """`expert_mlp`, the results where the engine has them.

  `ops.residual_rms_norm` takes them from there, which saves a pass over them on
  the way forward and two on the way back.
  """
  _check(*inputs)
  run = dispatch.select('experts', ENGINES, *inputs)
  if run is hopper.expert_mlp and inputs[0].shape[0]:
    return hopper.expert_mlp_in_place(*inputs, sink=sink)
  if sink is None:
    return api.Made(run(*inputs), None, None)
  rows, stacks = run(*inputs, sink)
  return api.Made(rows, None, None, stacks)


def _check(x_TD, expert_T, gate_up_EDF, down_EFD):
  num_experts, width, fused = gate_up_EDF.shape
  expected = (num_experts, fused // 2, width)
  if down_EFD.shape != expected or fused % 2:
    raise ValueError(
      f'expert_mlp: down must be {expected} for gate_up '
      f'{gate_up_EDF.shape}, got {down_EFD.shape}.'
    )
  if x_TD.shape != (*expert_T.shape, width):
    raise ValueError(
      f'expert_mlp: x must be [T, {width}] with T of expert '
      f'{expert_T.shape}, got {x_TD.shape}.'
    )


def expert_mlp_rows(
  x_TD: jax.Array,
  expert_T: jax.Array,
  gate_up_EFD: packed.Matrix,
  down_EDF: packed.Matrix,
) -> jax.Array:
  """`expert_mlp` for decoding: matrices are [out, in]; no gradient.

  Args:
    x_TD: [T, D] tokens.
    expert_T: [T] int32 in [0, E]; the class E has no expert and yields zeros.
    gate_up_EFD: [E, 2F, D].
    down_EDF: [E, D, F].

  Returns:
    [T, D] float32.
  """
  tokens = x_TD.shape[0]
  if tokens <= few.PICKED:
    return few.picked(x_TD, expert_T, gate_up_EFD, down_EDF)
  # A CPU has no time to spare for all experts.
  if tokens <= few.DENSE and dispatch.platform() in dispatch.GPUS:
    return few.dense(x_TD, expert_T, gate_up_EFD, down_EDF)
  run = xla.expert_mlp_rows
  # A turn of XLA's loop over blocks takes a GPU longer than its products. In
  # float32 the kernel's products would be those of TF32.
  if backend.runs() and x_TD.dtype.itemsize == 2:
    run = triton.expert_mlp_rows
  return run(x_TD, expert_T, gate_up_EFD, down_EDF)
