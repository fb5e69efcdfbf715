# SPDX-License-Identifier: Apache-2.0
"""Every engine of an operation against its meaning: is a kernel right here?

Small and awkward inputs are compared with the reference in float64, on the CPU.
Those of ZAYA1-8B, for which that takes too long, with the operation's last
engine, plain XLA, in float32 on the device; but for an operation that chooses,
as among thousands of tokens some have two classes that are equal but for
rounding.
"""

import contextlib
import functools
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ops import case as case_lib
from ops import dispatch, registry
from zaya_jax.bench.sweep import clock

# That of training on accelerators first: the time may not suffice for all.
DTYPES = ('bfloat16', 'float32')
# At the sizes of ZAYA1-8B: sums are longer than those that tolerances are for.
_LONGER = 3.0
Row = dict[str, Any]
Program = Callable[[Any], Any]


def rows(
  operation: registry.Operation,
  budget: clock.Budget,
  cases: tuple[str, ...] = (),
  known: Iterable[Row] = (),
) -> Iterator[Row]:
  """Compares the engines of an operation, while there is time.

  Args:
    operation: of the registry.
    budget: what has begun when it is spent is ended.
    cases: names; (): all, on a CPU without those of ZAYA1-8B.
    known: rows of an earlier command: what they compared is left out.

  Yields:
    op, engine, case, dtype, outcome ('right', 'wrong', 'failed', 'left out' or
    'no time'), error (the largest, as a share of what is allowed; None where
    nothing was compared), said (why), and default (whether the engine runs on
    this platform without being named).
  """
  done = {
    (row['op'], row['engine'], row['case'], row['dtype']) for row in known
  }
  todo = [
    (case, dtype, engines)
    for case, dtype in _todo(operation, cases)
    if (
      engines := [
        engine
        for engine in _engines(operation)
        if (operation.name, engine.name, case.name, dtype) not in done
      ]
    )
  ]
  for number, (case, dtype, engines) in enumerate(todo):
    if number and budget.left() <= 0:
      yield unfinished(operation, f'for {len(todo) - number} inputs')
      return
    wanted = _Wanted(operation, case, dtype)
    for engine in engines:
      words = operation.name, engine.name, case.name, dtype
      print('checking', *words, file=sys.stderr, flush=True)
      row = _row(*(operation, *words[1:]), *_compare(operation, engine, wanted))
      yield {**row, 'default': dispatch.platform() in engine.platforms}


def unfinished(operation: registry.Operation, said: str) -> Row:
  """The row that says that something was not compared."""
  return _row(operation, '', '', '', 'no time', said)


def program(
  run: Callable[..., Any], case: case_lib.Case, kwargs: dict[str, Any]
) -> Program:
  """A function: arguments -> the outputs, then the gradients."""
  run_case = functools.partial(run, **kwargs)

  def both(args):
    found, full = case_lib.with_gradients(run_case, case.gradients, args)
    return jax.jit(found)(*full)

  return both


def evaluate(program: Program, args: Any) -> list[np.ndarray]:
  """What a program gives, in NumPy's float64."""
  found = jax.tree.leaves(program(args))
  return [np.asarray(leaf, np.float64) for leaf in found]


def arguments(case: case_lib.Case, dtype: str) -> tuple[Any, dict[str, Any]]:
  """NumPy's: jax would compile for each shape how to take it over."""
  return case.arguments(np.random.default_rng(0), jnp.dtype(dtype))


@functools.cache
def expected(
  operation: registry.Operation, case: case_lib.Case, dtype: str
) -> list[np.ndarray]:
  """In float64, of the same rounded inputs."""
  args, _ = arguments(case, dtype)
  with jax.enable_x64(True), _on_cpu():
    return evaluate(_in_float64(operation, case), _cast(args, 'float64'))


def error(
  found: list[np.ndarray], wanted: list[np.ndarray], tolerance: float
) -> float:
  """The largest difference, as a share of what is allowed; inf of a NaN.

  Raises:
    ValueError: if shapes differ.
  """
  worst = 0.0
  for got, want in zip(found, wanted, strict=True):
    if got.shape != want.shape:
      raise ValueError(f'shape {got.shape} instead of {want.shape}')
    allowed = tolerance * max(np.abs(want).max(initial=0), 1e-30)
    most = np.abs(got - want).max(initial=0) / allowed
    worst = max(worst, float(most) if np.isfinite(most) else np.inf)
  return worst


class _Wanted:
  """Inputs, and what comes of them; computed when it is asked for."""

  def __init__(self, operation, case, dtype):
    self.case, self.dtype = case, dtype
    self.args, self.kwargs = arguments(case, dtype)
    self._operation = operation

  @functools.cached_property
  def chooses(self) -> bool:
    """Whether some result is a whole number."""
    run = functools.partial(self._operation.reference, **self.kwargs)
    leaves = jax.tree.leaves(jax.eval_shape(run, *self.args))
    return any(jnp.issubdtype(leaf.dtype, jnp.integer) for leaf in leaves)

  @functools.cached_property
  def values(self) -> list[np.ndarray]:
    if not self.case.zaya:
      return expected(self._operation, self.case, self.dtype)
    last = self._operation.engines[-1].name
    kwargs = dict(self.kwargs)
    if 'dtype' in kwargs:
      kwargs['dtype'] = jnp.dtype('float32')
    with (
      dispatch.use(**{self._operation.name: last}),
      jax.default_matmul_precision('highest'),
    ):
      run = program(self._operation.run, self.case, kwargs)
      return evaluate(run, _cast(self.args, 'float32'))


def _compare(operation, engine, wanted) -> tuple[str, str, float | None]:
  """Outcome, why, and the error."""
  if wanted.case.zaya and wanted.chooses:
    return 'left out', 'some of so many choices are ties', None
  try:
    values = wanted.values
  except Exception as fault:  # Of the memory, most likely.
    return 'left out', f'the reference does not run: {_words(fault)}', None
  # Of GPUs: products in float32 would be in TF32 otherwise.
  exact: contextlib.AbstractContextManager = contextlib.nullcontext()
  if wanted.dtype == 'float32':
    exact = jax.default_matmul_precision('highest')
  try:
    with dispatch.use(**{operation.name: engine.name}), exact:
      run = program(operation.run, wanted.case, wanted.kwargs)
      found = evaluate(run, wanted.args)
    limit = wanted.case.tolerance[wanted.dtype]
    limit *= _LONGER if wanted.case.zaya else 1.0
    worst = error(found, values, limit)
  except dispatch.UnsupportedError as unsupported:
    return 'left out', str(unsupported), None
  except Exception as fault:  # Of a compiler, a driver or the memory.
    return 'failed', _words(fault), None
  if worst <= 1:
    return 'right', '', worst
  said = f'an error of {worst * limit:.2g} of the largest value, {limit:g}'
  return 'wrong', f'{said} is allowed', worst


def _words(fault: Exception) -> str:
  return f'{type(fault).__name__}: {fault}'.splitlines()[0][:300]


def _engines(operation) -> list[dispatch.Engine]:
  """Those of this platform; on a CPU others are only interpreted."""
  named = dispatch.named().get(operation.name, 'auto')
  if named != 'auto':
    return [e for e in operation.engines if e.name == named]
  if dispatch.platform() != 'cpu':
    return list(operation.engines)
  return [e for e in operation.engines if 'cpu' in e.platforms]


def _todo(operation, names):
  """Pairs of a case and a type, those of ZAYA1-8B first."""
  large = dispatch.platform() != 'cpu'
  known = [c for c in operation.cases if (c.name in names if names else True)]
  zaya = [c for c in known if c.zaya and (large or names)]
  small = [c for c in known if not c.zaya]
  yield from itertools.product(zaya, DTYPES[:1])
  for dtype in DTYPES:
    yield from itertools.product(small, [dtype])


def _row(operation, engine, case, dtype, outcome, said, worst=None) -> Row:
  return {
    'op': operation.name,
    'engine': engine,
    'case': case,
    'dtype': dtype,
    'outcome': outcome,
    'error': None if worst is None else min(round(worst, 4), 1e9),
    'said': said,
    'default': False,
  }


@functools.cache
def _in_float64(operation, case):
  """Compiled once for inputs that were rounded to any type."""
  _, kwargs = arguments(case, DTYPES[0])
  if 'dtype' in kwargs:
    kwargs = {**kwargs, 'dtype': jnp.dtype('float64')}
  return program(operation.reference, case, kwargs)


def _on_cpu() -> contextlib.AbstractContextManager:
  """Inside, programs run on a CPU, if JAX_PLATFORMS allows it."""
  try:
    return jax.default_device(jax.local_devices(backend='cpu')[0])
  except RuntimeError:
    return contextlib.nullcontext()


def _cast(args, dtype):
  def one(x):
    x = np.asarray(x)
    return x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

  return jax.tree.map(one, args)
