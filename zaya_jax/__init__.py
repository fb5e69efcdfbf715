# SPDX-License-Identifier: Apache-2.0
"""zaya_jax trains ZAYA1 models in JAX.

Importing the package is light: `Config` and its sections need no jax. `train`,
`load`, `activations` and `plan_run` are fetched, and jax with them, when they
are first used.
"""

import importlib
import sys
import types
from typing import Any

from zaya_jax.config import (
  CheckpointConfig,
  Config,
  DataConfig,
  EvalConfig,
  GenerateConfig,
  LogConfig,
  MeshConfig,
  ModelConfig,
  OpsConfig,
  OptimConfig,
  PlanConfig,
  UsageError,
)
from zaya_jax.runtime import (
  clock as clock,  # First: its zero is the start of the run.
)

__all__ = [
  'CheckpointConfig',
  'Config',
  'DataConfig',
  'EvalConfig',
  'GenerateConfig',
  'LogConfig',
  'MeshConfig',
  'ModelConfig',
  'OpsConfig',
  'OptimConfig',
  'PlanConfig',
  'UsageError',
  'activations',
  'load',
  'plan_run',
  'train',
]

_LAZY = {
  'activations': 'zaya_jax.inference.load:activations',
  'load': 'zaya_jax.inference.load:load',
  'plan_run': 'zaya_jax.plan.planner:make',
  'train': 'zaya_jax.train.run:train',
}


class _Package(types.ModuleType):
  """A package whose `train` is always the function.

  Importing the submodule of the same name makes Python set the attribute to
  that module. Here the function that the module is named after takes its
  place, whoever imports it and when. `from zaya_jax.train import ...` and
  `importlib.import_module('zaya_jax.train')` are not concerned.
  """

  def __setattr__(self, name: str, value: Any) -> None:
    if name in _LAZY and isinstance(value, types.ModuleType):
      value = getattr(value, name)
    super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
  """Imports what `_LAZY` names on first use."""
  if name not in _LAZY:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  module, _, attribute = _LAZY[name].partition(':')
  value = getattr(importlib.import_module(module), attribute)
  globals()[name] = value
  return value


def __dir__() -> list[str]:
  return sorted({*globals(), *_LAZY})
