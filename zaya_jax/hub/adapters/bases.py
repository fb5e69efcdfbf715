# SPDX-License-Identifier: Apache-2.0
"""The frozen parameters beside an adapter, on the devices of a run."""

import os
from typing import Any, NamedTuple

import jax
import numpy as np

from zaya_jax import config as config_lib
from zaya_jax.checkpoint import arrays
from zaya_jax.checkpoint.reading import reader
from zaya_jax.hub import leaves as leaves_lib
from zaya_jax.hub import packing
from zaya_jax.hub.adapters import adapter, kept
from zaya_jax.hub.quantized import choice as choice_lib
from zaya_jax.model import lora, shapes
from zaya_jax.parallel import partition


class Begun(NamedTuple):
  """What a run with --lora.rank begins with.

  Attributes:
    params: of the base, on the mesh.
    buffers: of the base.
    factors: of the adapter that --restore holds; None: a new one begins.
    base: what checkpoints call the base.
  """

  params: Any
  buffers: Any
  factors: Any
  base: adapter.Base


def begin(
  config: config_lib.Config, mesh: jax.sharding.Mesh, like: dict[str, Any]
) -> Begun:
  """The model of `--restore`, or the adapter there and its base.

  Args:
    config: of the run.
    mesh: of its devices.
    like: 'params' and 'buffers' as the run has them.

  Raises:
    UsageError: if it is another model, or another kind of adapter, than that of
      the flags.
    CheckpointError: if it cannot be read, or holds NaN or Inf.
    FolderError: if it is a Hugging Face folder that cannot be read.
  """
  found, factors = leaves_lib.find(config.restore), None
  if its_base := adapter.of(found.about):
    _check_kind(config, adapter.lora_config(found.about), its_base)
    factors = reader.restore_params(
      found.path, {'params': _abstract(like['params'])}
    )['params']
    found = adapter.open_base(its_base)
  params, buffers, print_ = _put(config, mesh, found, like['buffers'])
  if its_base:
    adapter.check(its_base, found.path, print_)
  return Begun(params, buffers, factors, _named(config, found, print_))


def again(
  config: config_lib.Config, mesh: jax.sharding.Mesh, base: adapter.Base
) -> tuple[Any, adapter.Base]:
  """The base of a run that goes on: from `--restore`, where it may have moved.

  Returns:
    Parameters on the mesh, and the base with the place where it is now.

  Raises:
    CheckpointError: if it is not there, or has other values than before.
  """
  _check_rounding(config, config.run_dir, base)
  found = adapter.open_base(base, config.restore)
  params, _, print_ = _put(config, mesh, found)
  adapter.check(base, found.path, print_)
  return params, _named(config, found, print_)


def _named(config, found, print_) -> adapter.Base:
  source = os.path.abspath(found.path)  # One checkpoint, not the newest.
  choice = choice_lib.given(config)
  return adapter.Base(
    source=source,
    fingerprint=print_,
    quant=choice.kind,
    targets=choice.targets if choice else (),
  )


def _abstract(tree) -> Any:
  return jax.tree.map(
    lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), tree
  )


def _check_rounding(config, path, base) -> None:
  """Refuses a base that is to be rounded otherwise than it was."""
  mine = choice_lib.given(config)
  if (mine or choice_lib.NONE) == (base.choice or choice_lib.NONE):
    return
  flags = f'--quant={base.quant}'
  if base.choice:
    flags += f' --quant.targets={",".join(base.targets)}'
  raise config_lib.UsageError(
    f'--quant={config.quant} --quant.targets={",".join(mine.targets)}: the '
    f'adapter in {path} was trained on its base with {flags}; use these flags.'
  )


def _check_kind(config, there, base) -> None:
  """Refuses to go on with an adapter of another rank, scale or targets."""
  for name in ('rank', 'scale', 'targets'):
    mine, its = getattr(config.lora, name), getattr(there, name)
    if mine != its:
      raise config_lib.UsageError(
        f'--restore={config.restore} holds an adapter with --lora.rank='
        f'{there.rank} --lora.alpha={there.scale * there.rank:g} '
        f'--lora.targets={",".join(there.targets)}; use these flags, or export '
        'it and adapt what --mode=export writes.'
      )
  _check_rounding(config, config.restore, base)


def _put(config, mesh, found, like=None):
  """Reads a base onto the mesh: parameters, buffers, fingerprint."""
  _check_shapes(config, found)
  packing.wanted(found, choice_lib.given(config))  # Or it refuses.
  trees, print_ = adapter.read(
    found, lambda name, leaf: _keep(config, found, name, leaf)
  )
  with jax.set_mesh(mesh):
    specs = partition.part_specs(trees['params'])
  put = lambda a, spec: jax.device_put(
    a, jax.sharding.NamedSharding(mesh, spec)
  )
  params = jax.tree.map(put, trees['params'], specs)
  buffers = trees['buffers']
  if like is not None:
    buffers = jax.tree.map(
      lambda a, b: jax.device_put(a.astype(b.dtype), b.sharding), buffers, like
    )
  with jax.set_mesh(mesh):
    arrays.check_finite(found.path, {'params': params})
  return params, buffers, print_


def _keep(config, found, name, leaf) -> kept.Kept:
  """How a frozen array stays: its type, or its few bits."""
  part, _, path = name.partition('/')
  if part != 'params':
    return kept.Wide(leaf.shape, np.float32)
  if kind := choice_lib.given(config).of(path):
    return kept.Rounded(found.path, name, leaf.shape[0], kind)
  # What is packed lies whole on each device, which FSDP is there to avoid.
  if packing.is_stored(leaf) and config.mesh.fsdp == 1:
    return kept.Stored(leaf, name)
  dtype = lora.frozen_dtype(config.model, path, leaf.dtype)
  return kept.Wide(leaf.shape, dtype)


def _check_shapes(config, found) -> None:
  """Refuses a base whose arrays are not those of the run's model."""
  wanted = shapes.parameters(config.model)
  there = {
    name.partition('/')[2]: leaf.shape
    for name, leaf in found.leaves.items()
    if name.startswith('params/')
  }
  if wrong := sorted(n for n in wanted if there.get(n) != wanted[n]):
    raise config_lib.UsageError(
      f'{found.path} is another model than that of the flags: {wrong[0]} is '
      f'{there.get(wrong[0])} there and {wanted[wrong[0]]} here; leave out '
      '--model.*, and they are taken from there.'
    )
