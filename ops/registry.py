# SPDX-License-Identifier: Apache-2.0
"""All operations, for who tests or times each of them.

The folder of an operation has `ENGINES` and the public function in its
`__init__`, the same function in `reference`, and `CASES` in `cases`.
"""

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

from ops import case, dispatch

# Folder -> public function. The folder is the name of the flag.
FUNCTIONS = {
  'attention': 'attention',
  'cca': 'cca_prologue',
  'cross_entropy': 'linear_cross_entropy',
  'experts': 'expert_mlp',
  'muon_momentum': 'muon_momentum',
  'newton_schulz': 'newton_schulz',
  'residual_rms_norm': 'residual_rms_norm',
  'router': 'router',
}


@dataclasses.dataclass(frozen=True)
class Operation:
  """What is known of an operation.

  Attributes:
    name: that of its folder.
    run: the public function.
    reference: what it means.
    engines: fastest first.
    cases: inputs.
  """

  name: str
  run: Callable[..., Any]
  reference: Callable[..., Any]
  engines: tuple[dispatch.Engine, ...]
  cases: tuple[case.Case, ...]


def operation(name: str) -> Operation:
  """The operation of the folder `name`."""
  function = FUNCTIONS[name]
  module = importlib.import_module(f'{__package__}.{name}')
  reference = importlib.import_module(f'{module.__name__}.reference')
  cases = importlib.import_module(f'{module.__name__}.cases')
  return Operation(
    name,
    getattr(module, function),
    getattr(reference, function),
    module.ENGINES,
    cases.CASES,
  )
