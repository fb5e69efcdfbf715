# SPDX-License-Identifier: Apache-2.0
"""Our distributed Muon beside optax's, the same matrices on the same devices.

  python -m benchmarks.optimizer_step [--devices=1,2,4 --peers=optax] [--FLAG]

Muon's matrices of eight layers of ZAYA1-8B; a step takes summed gradients,
momentum and parameters, divided alike among the devices (ZeRO-1), and gives new
ones; weight decay is included. The peers are `optax.contrib.muon`
under `jit`, and XLA (GSPMD) decides what is sent:

  optax         the same stacks [layers, experts, rows, columns], float32 (the
                default: its iteration has the type of the gradients)
  optax_bf16    gradients, momentum and iteration in bfloat16
  optax_whole   as optax_bf16, with whole gradients and momentum everywhere: no
                messages, and every device computes all
  leaves        as optax, one array for each matrix of each layer and expert
  leaves_bf16   the same in bfloat16

Ours and a peer must agree on the update before they are timed. They take turns,
and the median of each counts.
"""

import dataclasses
import functools
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks import cases, updates
from zaya_jax import config as config_lib
from zaya_jax.optim import groups
from zaya_jax.parallel import mesh as mesh_lib
from zaya_jax.parallel import partition
from zaya_jax.train import state as state_lib
from zaya_jax.train import step

PEERS = ('optax', 'optax_bf16', 'optax_whole', 'leaves', 'leaves_bf16')
# How far two updates of a matrix may be apart, of its Frobenius norm: both in
# float32, or one in bfloat16, with 8 bits. Five iterations make the smallest
# singular values, and their errors, 480 times larger.
BOUNDS = {'float32': 1e-4, 'bfloat16': 0.2}
_LR = 0.02


def main() -> None:
  """Measures, prints a table and writes benchmarks/results/optimizer_step."""
  parser = cases.parser('optimizer_step_h200.json')
  parser.add_argument(
    '--peers', type=lambda text: text.split(','), default=PEERS
  )
  args, more = parser.parse_known_args()
  if args.case:
    cases.run_one(
      args,
      lambda peer, devices: measure(
        cases.make_config('zero1', devices, args, more), peer, args.steps
      ),
    )
    return
  names = [f'{peer}:{n}' for n in args.devices for peer in args.peers]
  cases.run_all('benchmarks.optimizer_step', names, args, table)


def measure(
  config: config_lib.Config, peer: str, repeats: int
) -> dict[str, Any]:
  """Checks that ours and a peer agree, and times both.

  Args:
    config: its model, and the devices of its plan.
    peer: of `PEERS`.
    repeats: how often each is timed.

  Raises:
    RuntimeError: if the updates differ by more than the bound.
  """
  config = _muon_alone(config)
  devices = jax.devices()[: config.plan.devices]
  mesh = mesh_lib.make_mesh(config.mesh, devices)
  with jax.set_mesh(mesh):
    params = _matrices(config)
    init, update = updates.ours(config)
    ours = updates.gradients(params), jax.jit(init)(params), params
    compiled = functools.partial(
      updates.compile_update, update, *ours, options=step.compiler_options()
    )
    programs = [compiled()]
    _, once = compiled(keep=True)(*ours)
  optimizer = _optimizer(config, peer)
  theirs = _place(optimizer, peer, ours[0], params)
  update = updates.peer(optimizer)[1]
  started = time.perf_counter()
  programs.append(updates.compile_update(update, *theirs))
  compile_s = time.perf_counter() - started
  _, theirs_once = updates.compile_update(update, *theirs, keep=True)(*theirs)
  difference = _difference(params, once, theirs_once)
  kind = 'bfloat16' if peer.endswith(('bf16', 'whole')) else 'float32'
  if devices[0].platform != 'cpu':
    kind = 'bfloat16'  # Ours is.
  if not difference <= BOUNDS[kind]:
    raise RuntimeError(
      f'ours and {peer} differ by {difference:.3g} of the update, more than '
      f'{BOUNDS[kind]:g}.'
    )
  del once, theirs_once
  ours_s, theirs_s = updates.median_s(
    programs, [list(ours), list(theirs)], repeats
  )
  return {
    'device': devices[0].device_kind,
    'arrays': len(jax.tree.leaves(theirs[0])),
    'difference': difference,
    'bound': BOUNDS[kind],
    'ours_s': ours_s,
    'peer_s': theirs_s,
    'ratio': theirs_s / ours_s,
    'peer_compile_s': compile_s,
    'ours_bytes': cases.compiled_bytes(programs[0]),
    'peer_bytes': cases.compiled_bytes(programs[1]),
  }


def table(rows: Sequence[dict[str, Any]]) -> str:
  """The rows of `measure` for people."""
  lines = [
    'peer         devices arrays   ours ms   peer ms  ratio   differ'
    '  compile s  ours GiB  peer GiB'
  ]
  for row in rows:
    name = f'{row["case"]:<12} {row["devices"]:7}'
    if 'error' in row:
      lines.append(f'{name}  {row["error"]}')
      continue
    ours, theirs = (row[f'{who}_bytes']['total'] for who in ('ours', 'peer'))
    lines.append(
      f'{name} {row["arrays"]:6} {1e3 * row["ours_s"]:9.2f} '
      f'{1e3 * row["peer_s"]:9.2f} {row["ratio"]:6.2f} '
      f'{row["difference"]:8.1e} {row["peer_compile_s"]:10.1f} '
      f'{ours / 2**30:9.2f} {theirs / 2**30:9.2f}'
    )
  return '\n'.join(lines)


def _muon_alone(config) -> config_lib.Config:
  """The run with nothing in its update but Muon and weight decay."""
  optim = dataclasses.replace(
    config.optim, lr=_LR, schedule='constant', warmup_steps=0, clip_norm=0.0
  )
  return dataclasses.replace(config, optim=optim)


def _matrices(config) -> dict[str, Any]:
  """Random numbers for Muon's matrices, where parameters live."""
  shapes = jax.eval_shape(state_lib.make_init(config)).params
  kinds = groups.label(shapes, optimizer='muon')
  leaves, tree = jax.tree.flatten(updates.only(shapes, kinds, 'muon'))

  def draw():
    keys = jax.random.split(jax.random.key(0), len(leaves))
    drawn = [
      config.model.init_std * jax.random.normal(key, leaf.shape)
      for key, leaf in zip(keys, leaves, strict=True)
    ]
    return partition.place(jax.tree.unflatten(tree, drawn))

  return jax.jit(draw)()


def _optimizer(config, peer) -> optax.GradientTransformation:
  """A peer with our settings."""
  optim, whole = config.optim, peer == 'optax_whole'
  dtype = jnp.bfloat16 if whole or peer.endswith('bf16') else jnp.float32
  rows_and_columns = optax.contrib.MuonDimensionNumbers(-2, -1)
  muon = optax.contrib.muon(
    optim.lr,
    ns_steps=optim.newton_schulz_steps,
    beta=optim.momentum,
    nesterov=optim.nesterov,
    weight_decay=optim.weight_decay,
    mu_dtype=dtype,
    consistent_rms=0.2,
    muon_weight_dimension_numbers=lambda params: jax.tree.map(
      lambda _: rows_and_columns, params
    ),
  )
  cast = lambda grads, _: jax.tree.map(lambda g: g.astype(dtype), grads)
  return optax.chain(optax.stateless(cast), muon)


def _place(optimizer, peer, grads, params) -> tuple[Any, Any, Any]:
  """Copies of gradients and parameters for a peer, and its first state."""
  devices = jax.tree.leaves(params)[0].sharding.mesh.devices.reshape(-1)
  mesh = jax.sharding.Mesh(devices, ('replica',))
  replicated = NamedSharding(mesh, P())

  def copy(tree, place):
    flat = {name: _split(peer, a) for name, a in _named(tree).items()}
    there = jax.tree.map(place, flat)
    return jax.tree.map(
      lambda a, s: jnp.copy(jax.device_put(a, s)), flat, there
    )

  def divided(a):
    spec = jax.typeof(a).sharding.spec
    return replicated if peer == 'optax_whole' else NamedSharding(mesh, spec)

  grads = copy(grads, divided)
  params = copy(params, lambda _: replicated)
  # Momentum, in the order of the gradients, and some numbers.
  places = iter([g.sharding for g in jax.tree.leaves(grads)])
  there = jax.tree.map(
    lambda a: next(places) if a.ndim > 1 else replicated,
    jax.eval_shape(optimizer.init, grads),
  )
  state = jax.jit(optimizer.init, out_shardings=there)(grads)
  return grads, state, params


def _split(peer, a) -> list[jax.Array]:
  """The stack, or its matrices."""
  if not peer.startswith('leaves'):
    return [a]
  return [a[i] for i in np.ndindex(a.shape[:-2])]


def _named(tree) -> dict[str, Any]:
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {groups.name(path): leaf for path, leaf in leaves}


def _difference(before, ours, theirs) -> float:
  """The largest, of any matrix, between two updates; of the norm of ours."""
  worst = []
  ours = _named(mesh_lib.off_mesh(ours))
  for name, old in _named(mesh_lib.off_mesh(before)).items():
    stack = lambda a: a.reshape(-1, *a.shape[-2:])
    parts = [stack(a.addressable_data(0)) for a in theirs[name]]
    a, b = stack(ours[name] - old), jnp.concatenate(parts) - stack(old)
    norm = lambda x: jnp.linalg.norm(x, axis=(-2, -1))
    worst.append(jnp.max(norm(a - b) / norm(a)))
  return float(max(worst))


if __name__ == '__main__':
  main()
