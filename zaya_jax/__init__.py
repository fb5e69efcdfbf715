# SPDX-License-Identifier: Apache-2.0
"""zaya_jax trains ZAYA1 models in JAX.

Importing the package is light: everything is imported on first use. `Config`
and its sections need no jax. `train` is a package that can be called.
"""

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:  # Importing it takes longer than all else before main.py.
  from typing import Any

_CONFIG = (
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
)
_LAZY = {
  '__version__': 'zaya_jax.config:VERSION',
  **{name: f'zaya_jax.config:{name}' for name in _CONFIG},
  'activations': 'zaya_jax.inference.load:activations',
  'ledger': 'zaya_jax.data.ledger.mode:ask',
  'load': 'zaya_jax.inference.load:load',
  'plan_run': 'zaya_jax.plan.planner:make',
}
__all__ = [*_LAZY, 'train']


def _command() -> None:
  """What the command `zaya` runs: the same as `python -m zaya_jax.main`."""
  import runpy

  runpy.run_module('zaya_jax.main', run_name='__main__', alter_sys=True)


def __getattr__(name: str) -> 'Any':
  """Imports what `_LAZY` names, or the package `train`, on first use."""
  if name == 'train':
    return importlib.import_module('zaya_jax.train')
  if name not in _LAZY:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  module, _, attribute = _LAZY[name].partition(':')
  value = getattr(importlib.import_module(module), attribute)
  globals()[name] = value
  return value


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
