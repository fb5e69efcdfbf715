# SPDX-License-Identifier: Apache-2.0
"""zaya_jax trains ZAYA1 models in JAX.

Importing the package is light: `Config` and its sections need no jax. `load`,
`activations` and `plan_run` are imported, and jax with them, on first use;
`train` is a package that can be called, and imports jax then.
"""

import importlib
from typing import Any

from zaya_jax import train
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
}


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
