# SPDX-License-Identifier: Apache-2.0
"""An optimizer's update alone: what runs it, and how long it takes."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import optax

from zaya_jax import config as config_lib
from zaya_jax.optim import optimizer as optimizer_lib
from zaya_jax.parallel import partition

_WARM_UP = 3

# (gradients, optimizer's state, parameters) -> (state, parameters)
Update = Callable[[Any, Any, Any], tuple[Any, Any]]


def ours(config: config_lib.Config) -> tuple[Callable[[Any], Any], Update]:
  """What makes the optimizer's state from parameters, and the update of a step.

  Gradients come where the step sums them, divided as the state, and become
  float32 as there; parameters are divided alike: the next step gathers them.
  """
  optimizer = optimizer_lib.make_optimizer(
    config.optim, config.num_steps
  ).params

  def update(grads, opt_state, params):
    grads = jax.tree.map(lambda g, p: g.astype(p.dtype), grads, params)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return opt_state, partition.apply_updates(params, updates, True)

  return optimizer.init, update


def peer(
  optimizer: optax.GradientTransformation,
) -> tuple[Callable[[Any], Any], Update]:
  """The same of any optimizer, wherever its arrays are."""

  def update(grads, opt_state, params):
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return opt_state, optax.apply_updates(params, updates)

  return optimizer.init, update


def only(tree: Any, kinds: Any, kind: str) -> Any:
  """The part of a nested dict whose leaves are of one kind.

  Args:
    tree: the nested dict.
    kinds: of each leaf, as `labels.label` says.
    kind: 'muon', for example.
  """
  if not isinstance(tree, dict):
    return tree
  found = {k: only(v, kinds[k], kind) for k, v in tree.items()}
  wanted = lambda k: kinds[k] == kind or isinstance(kinds[k], dict) and found[k]
  return {k: v for k, v in found.items() if wanted(k)}


def gradients(
  params: Any, cast: Callable[[Any], Any] = lambda params: params
) -> Any:
  """Any numbers instead of gradients, where the step sums them.

  Args:
    params: the parameters.
    cast: what gives parameters the types of their gradients.
  """
  halves = lambda params: jax.tree.map(lambda a: a / 2, cast(params))
  return jax.jit(lambda params: partition.place(halves(params)))(params)


def compile_update(
  update: Update,
  *args: Any,
  keep: bool = False,
  options: dict[str, Any] | None = None,
) -> jax.stages.Compiled:
  """Compiles it for these arguments; results lie where the arguments are.

  Args:
    update: to compile.
    *args: its gradients, state and parameters.
    keep: whether the arguments are still wanted; otherwise it is in place.
    options: of XLA; ours are `step.compiler_options`.
  """
  # A result takes the memory of the first argument like it, so the order of
  # both is the same: momentum in the place of parameters would be two copies.
  there = jax.tree.map(lambda a: a.sharding, args[1:])
  program = jax.jit(
    update, donate_argnums=() if keep else (1, 2), out_shardings=there
  )
  return program.lower(*args).compile(compiler_options=options)


def median_s(
  programs: Sequence[jax.stages.Compiled],
  arguments: Sequence[list[Any]],
  repeats: int,
) -> list[float]:
  """The median seconds of each; they take turns.

  State and parameters among the arguments become the last results.
  """
  seconds = [[] for _ in programs]
  for i in range(_WARM_UP + repeats):
    for program, each, spent in zip(programs, arguments, seconds, strict=True):
      started = time.perf_counter()
      each[1:] = jax.block_until_ready(program(*each))
      if i >= _WARM_UP:
        spent.append(time.perf_counter() - started)
  return [statistics.median(spent) for spent in seconds]
