# SPDX-License-Identifier: Apache-2.0
"""A program that makes one call many times, none of which can be left out."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from zaya_jax.bench.sweep import clock


def many(
  call: Callable[..., Any], calls: int
) -> Callable[[tuple[Any, ...], Any], Any]:
  """A function of inputs and of a former result, whose memory it may take.

  Each call gets the same inputs, which an optimization barrier ties to the
  result before: XLA can neither drop a call nor move it out of the loop, and
  the result is that of one call.

  Args:
    call: a function of arrays.
    calls: of it.
  """

  def run(inputs, last):
    def body(_, carry):
      inputs, _ = jax.lax.optimization_barrier(carry)
      return inputs, call(*inputs)

    # Not unrolled: within a turn XLA drops what a barrier gives to nobody.
    return jax.lax.fori_loop(0, calls, body, (inputs, last))[1]

  return run


def measure(
  call: Callable[..., Any],
  inputs: tuple[Any, ...],
  repeats: int,
  expected_s: float | None = None,
) -> tuple[clock.Timed, Any]:
  """Times a function of arrays on the default device.

  Args:
    call: the function.
    inputs: its arguments.
    repeats: the most samples.
    expected_s: seconds of a call, where something is known.

  Returns:
    The time of a call, and its result.
  """
  shapes = jax.eval_shape(call, *inputs)
  last: Any = None

  def make(calls):
    nonlocal last
    last = None  # The memory of the program before.
    program = jax.jit(many(call, calls), donate_argnums=1)
    last = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    compiled = program.lower(inputs, last).compile()

    def run():
      nonlocal last
      last = jax.block_until_ready(compiled(inputs, last))

    return run

  timed = clock.measure(
    make, repeats=repeats, launch_s=launch_s(), expected_s=expected_s
  )
  return timed, last


@functools.cache
def launch_s() -> float:
  """Seconds of a program without a call."""
  last = jnp.zeros(())
  compiled = jax.jit(lambda last: last, donate_argnums=0).lower(last).compile()

  def run():
    nonlocal last
    last = jax.block_until_ready(compiled(last))

  return clock.launch(run)
