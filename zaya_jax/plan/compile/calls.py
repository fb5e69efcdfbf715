# SPDX-License-Identifier: Apache-2.0
"""Which kernels a step calls, and whether its program runs each as often.

XLA may run what a loop saves once more for whoever else reads it (`ops.once`):
a compiled program is held to the calls of the traced one.
"""

import collections
import re
from collections.abc import Iterable
from typing import Any

from zaya_jax.plan.cost import lint

PRODUCTS, GROUPED = 'products', 'grouped products'
# Libraries' products of matrices in a compiled program.
_PRODUCT = re.compile('__cublas|dot|convolution')
_LIBRARY = '__cublas$lt$groupedMatmul'
# Operations that are to be kernels on a GPU: no XLA engine, and in none of
# their loops a product of XLA's.
OPERATIONS = ('attention', 'cca', 'cross_entropy', 'experts')
# How often at most, of what is asked. XLA:ROCm (of jax 0.10.2) runs this kernel
# three times a layer instead of twice where devices share a sequence. A barrier
# makes it no fewer, and 64 % of all bytes are exposed then instead of 16.
_AGAIN = {'triton cca_forward': 1.5}


def asked(jaxpr: Any, times: int = 1) -> dict[str, int]:
  """Calls of one run of a traced program, by kernel; PRODUCTS: of matrices.

  Args:
    jaxpr: of the program; each branch counts, a loop of unknown length once.
    times: that it runs.
  """
  found: dict[str, int] = collections.Counter()
  for equation in getattr(jaxpr, 'jaxpr', jaxpr).eqns:
    name = kernel(equation)
    if name:
      found[name] += times
      continue
    turns = equation.params.get('length', 1)
    turns = turns if equation.primitive.name == 'scan' else 1
    for inner in _inner(equation.params.values()):
      found.update(asked(inner, times * turns))
  return dict(found)


def kernel(equation: Any) -> str | None:
  """What a `JaxprEqn` calls, by the name that `hlo.read` gives it."""
  kind, params = equation.primitive.name, equation.params
  if kind == 'pallas_call':
    return f'triton {params["name"]}'
  if kind == 'ffi_call':
    return re.sub(':.*:', ' ', params['target_name'])
  return {'dot_general': PRODUCTS, 'ragged_dot_general': GROUPED}.get(kind)


def check(compiled: dict[str, Any]) -> list[lint.Finding]:
  """Rules of kernels, those that hold too.

  Args:
    compiled: what `rocm.compile_step` returns.
  """
  found, wanted = [_twice(compiled)], compiled['asked'].get(GROUPED, 0)
  if wanted:
    runs = counted(compiled['kernels']).get(GROUPED, 0)
    found.append(
      lint.Finding(
        rule='grouped products are those of the library',
        value=f'{runs:,} of {wanted:,}',
        good=runs == wanted,
        advice='XLA multiplies each token by all experts: --ops.experts=auto.',
      )
    )
  return found


def _twice(compiled):
  asked = compiled['asked']
  runs = counted(compiled['kernels'])
  more = {
    f'{name} {count:,} for {asked.get(name, 0):,}': name
    for name, count in sorted(runs.items())
    if count > asked.get(name, 0)
  }
  known = lambda name: runs[name] <= _AGAIN.get(name, 1) * asked.get(name, 0)
  return lint.Finding(
    rule='no kernel or product runs more often than it is called',
    value=', '.join(more)
    or f'{sum(runs.values()):,} of {sum(asked.values()):,} calls',
    good=all(map(known, more.values())),
    advice='XLA computes again what a loop saves: ops.once.',
  )


def counted(kernels: dict[str, dict[str, int]]) -> dict[str, int]:
  """Launches of a compiled program, named as `asked` names them."""
  found: dict[str, int] = collections.Counter()
  for name, kind in kernels.items():
    if name.startswith(('triton ', 'zaya_ops ')):
      found[name] += kind['launches']
    elif name == _LIBRARY:
      found[GROUPED] += kind['launches']
    elif _PRODUCT.match(name):
      found[PRODUCTS] += kind['launches']
  return dict(found)


def engines(chosen: Iterable[Any]) -> lint.Finding:
  """Attention and the others run on kernels, not as programs of XLA.

  Args:
    chosen: pairs of operation and engine, of `dispatch.choices`.
  """
  names = {op: name for op, name in chosen if op in OPERATIONS}
  runs = [f'{op} {name}' for op, name in sorted(names.items())]
  loops = [run for run in runs if run.endswith(' xla')]
  return lint.Finding(
    rule=f'{", ".join(OPERATIONS)} are kernels',
    value=', '.join(loops or runs),
    good=not loops,
    advice='Build the library (make rocm-kernels), or see why: --ops.* in the '
    'log.',
  )


def _inner(values):
  for value in values:
    for each in value if isinstance(value, (tuple, list)) else (value,):
      if hasattr(getattr(each, 'jaxpr', each), 'eqns'):
        yield each
