# SPDX-License-Identifier: Apache-2.0
"""Engines that a GPU would take at the shapes of ZAYA1-8B, unnamed."""

from ops import dispatch, registry
from tests.support.ops import shapes


def engines() -> dict[str, dict[str, str]]:
  """Platform -> operation -> engine."""
  found = {platform: {} for platform in dispatch.GPUS}
  for name in registry.FUNCTIONS:
    operation = registry.operation(name)
    args, kwargs = shapes.of(next(c for c in operation.cases if c.zaya))
    if name == 'residual_rms_norm':  # The three that may be left out.
      args = (*args, *[None] * (10 - len(args)))
    for platform, of_platform in found.items():
      with dispatch.compile_for(platform):
        run = dispatch.select(name, operation.engines, *args, **kwargs)
      of_platform[name] = next(
        engine.name for engine in operation.engines if engine.run is run
      )
  return found
