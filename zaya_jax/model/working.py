# SPDX-License-Identifier: Apache-2.0
"""The experts' matrices as a step works with them: their type, their gradients.

They are 91 % of ZAYA1-8B. Float32 parameters of a run are neither what devices
send to each other nor what is multiplied, and their gradients need no arrays of
each layer's own.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from ops.experts import packed
from ops.experts import sink as sink_lib
from zaya_jax import config as config_lib
from zaya_jax.model import layers, shapes
from zaya_jax.parallel import mesh, partition

_EXPERTS = 'layers/experts/'


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Sinks:
  """Where gradients of the experts of all layers go: `ops.experts.sink`.

  Attributes:
    stacks: the gradient of these is all that the experts get.
    first: what that begins with.
    add: int32 scalar, whether to add to it; else it is written over.
  """

  stacks: sink_lib.Stacks
  first: sink_lib.Stacks
  add: jax.Array


def narrow(config: config_lib.ModelConfig) -> Callable[[str], Any]:
  """Path of a parameter -> the type in which devices send it; None: its own.

  The experts' matrices go in the compute type, half the bytes. FSDP sums
  gradients where a layer gathers its matrices: in float32, so there they stay
  as they are.
  """
  dtype = layers.compute_dtype(config) if mesh.size('fsdp') == 1 else None
  return lambda name: dtype if name.startswith(_EXPERTS) else None


def cast_experts(
  config: config_lib.ModelConfig, params: dict[str, Any]
) -> dict[str, Any]:
  """Parameters with the experts' matrices as `narrow` says, if they are whole.

  A layer casts what it needs. Cast here, the stack of their gradients has that
  type too, which is the one that they come in: half the bytes to write and to
  read. Parts are cast where they are gathered.
  """

  def cast(key, w):
    if isinstance(w, packed.Packed):
      return w  # A layer widens it.
    dtype = narrow(config)(_EXPERTS + key)
    return w if dtype is None or _is_part(config, key, w) else w.astype(dtype)

  experts = params['layers']['experts']
  return with_experts(params, {key: cast(key, experts[key]) for key in experts})


def takes_sinks(config: config_lib.ModelConfig, params: dict[str, Any]) -> bool:
  """Whether gradients of the experts can go to `Sinks`.

  Where a layer gathers its matrices it sums their gradients over devices, too.
  A loop whose layers are computed anew whole would save the stacks, which it
  only hands on, for each.
  """
  if mesh.size('fsdp') > 1:
    return False
  if config.scan_layers != 'false' and config.remat == 'block':
    return False
  experts = params['layers']['experts']
  return not any(_is_part(config, key, experts[key]) for key in experts)


def with_experts(
  params: dict[str, Any], experts: dict[str, Any]
) -> dict[str, Any]:
  """Parameters, or gradients, with these of the experts."""
  return {**params, 'layers': {**params['layers'], 'experts': experts}}


def _is_part(config, key, w):
  name = _EXPERTS + key
  return partition.is_part(name, w, shapes.parameters(config)[name])
