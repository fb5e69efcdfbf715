# SPDX-License-Identifier: Apache-2.0
"""Training: `run` is the page to read first.

The package is the public function too: `zaya_jax.train(config)`.
"""

import sys
import types

from zaya_jax.config import checks
from zaya_jax.runtime import clock


class _Package(types.ModuleType):
  """A package that can be called; what trains is imported, with jax, then."""

  def __call__(self, config) -> int:
    """Trains as `run.train` does."""
    clock.start()
    checks.check(config)
    from zaya_jax.train import run

    return run.train(config)


sys.modules[__name__].__class__ = _Package
