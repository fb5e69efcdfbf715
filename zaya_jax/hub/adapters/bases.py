# SPDX-License-Identifier: Apache-2.0
"""Frozen parameters on the devices of a run: of an adapter, or a reference."""

import os
from collections.abc import Mapping
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


def reference(
  config: config_lib.Config, mesh: jax.sharding.Mesh, path: str
) -> tuple[Any, adapter.Base]:
  """The model of `--restore` to compare with, which stays as it is.

  Args:
    config: of the run.
    mesh: of its devices.
    path: of the folder, or of the one checkpoint that the run begins with.

  Returns:
    Its parameters on the mesh, and what checkpoints call it.

  Raises:
    UsageError: if it is another model than that of the flags.
    CheckpointError: if it cannot be read, or holds NaN or Inf.
  """
  found = leaves_lib.find(path)
  params, _, print_ = _put(config, mesh, found)
  return params, _named(config, found, print_, adapter.REFERENCE)


def again(
  config: config_lib.Config, mesh: jax.sharding.Mesh, about: Mapping[str, Any]
) -> tuple[dict[str, Any], adapter.Base | None]:
  """What is frozen of a run that goes on: `--restore` says where it is now.

  Args:
    config: of the run.
    mesh: of its devices.
    about: the meta of the checkpoint to go on from.

  Returns:
    'base' or 'reference' of the state, on the mesh, and the model with the
    place where it is now; nothing and None where all is in the checkpoint.

  Raises:
    CheckpointError: if it is not there, or has other values than before.
    UsageError: if the run did not keep to it until now.
  """
  role = adapter.META if config.lora.rank else adapter.REFERENCE
  base = adapter.of(about, role)
  if config.dpo.beta and not base:
    raise config_lib.UsageError(
      f'--dpo.beta={config.dpo.beta:g} compares with the model that a run '
      f'began with, and --run_dir={config.run_dir} holds a checkpoint of one '
      'without it; begin from its parameters in another --run_dir with '
      f'--restore={config.run_dir}.'
    )
  if not base or role == adapter.REFERENCE and not config.dpo.beta:
    return {}, None
  _check_rounding(config, config.run_dir, base)
  found = adapter.open_base(base, config.restore)
  params, _, print_ = _put(config, mesh, found)
  adapter.check(base, found.path, print_)
  return {role: params}, _named(config, found, print_, role)


def note(
  config: config_lib.Config, base: adapter.Base | None, state: dict[str, Any]
) -> str:
  """Of the parameters of --restore: what stays as it is, what is trained.

  Args:
    config: of the run.
    base: of `begin` or `reference`; None: all is trained.
    state: 'base', if there is one.
  """
  if not base:
    return ''
  if base.role == adapter.REFERENCE:
    return (
      f', all of which are trained; a frozen copy (fingerprint '
      f'{base.fingerprint}) is the reference, and the balancing bias stays'
    )
  rounded = f', rounded to {base.choice}' if base.choice else ''
  line = packing.note(state['base']).removeprefix('note: ').removesuffix('.')
  return (
    f', frozen (fingerprint {base.fingerprint}{rounded}), and so is the '
    f'balancing bias; an adapter of rank {config.lora.rank} is trained'
  ) + (f' ({line})' if line else '')


def _named(config, found, print_, role=adapter.META) -> adapter.Base:
  source = os.path.abspath(found.path)  # One checkpoint, not the newest.
  choice = choice_lib.given(config)
  return adapter.Base(
    source=source,
    fingerprint=print_,
    quant=choice.kind,
    targets=choice.targets if choice else (),
    role=role,
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
