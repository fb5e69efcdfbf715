# SPDX-License-Identifier: Apache-2.0
"""Compiles the training step for MI300X; runs where ROCm's plugin is.

Reads a flagfile from stdin, writes one JSON object to stdout. No GPU is
needed: the plugin makes devices that can be compiled for and nothing else.
That part of jax is private, hence the pinned version.
"""

import functools
import importlib.util
import json
import pathlib
import resource
import sys
import time
from typing import Any

import jax

from ops import dispatch
from zaya_jax import config as config_lib
from zaya_jax.parallel import mesh
from zaya_jax.plan.compile import calls, hlo
from zaya_jax.train import traced as traced_lib

_TARGET = pathlib.Path(__file__).with_name('mi300x.txtpb')


def main() -> None:
  """Compiles the step of the flags on stdin."""
  lines = [line for line in sys.stdin.read().splitlines() if line[:1] == '-']
  config = config_lib.Config.parse(lines)
  start = time.monotonic()
  engines = dispatch.use(**vars(config.ops))
  with engines, dispatch.compile_for('rocm'):
    found = compile_step(config, _devices(config.plan.devices), 'rocm')
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
  seconds = time.monotonic() - start
  json.dump({'seconds': seconds, 'host_bytes': peak, **found}, sys.stdout)


def compile_step(
  config: config_lib.Config, devices: list[jax.Device], platform: str
) -> dict[str, Any]:
  """Compiles the training step and says what is in it.

  Args:
    config: of the run.
    devices: of its mesh.
    platform: theirs.

  Returns:
    arguments and temporary, bytes of a device; what `hlo.read` returns; asked,
    of `calls.asked`, and engines, pairs of an operation and its engine.
  """
  device_mesh = mesh.make_mesh(config.mesh, devices)
  with jax.set_mesh(device_mesh):
    traced = traced_lib.trace(config, device_mesh)
    compiled = traced.lower(lowering_platforms=(platform,)).compile()
  memory = compiled.memory_analysis()
  return {
    'arguments': memory.argument_size_in_bytes,
    'temporary': memory.temp_size_in_bytes,
    'asked': calls.asked(traced.jaxpr),
    'engines': [(c.op, c.engine) for c in dispatch.choices()],
    **hlo.read(compiled.as_text()),
  }


def _devices(count: int) -> list[jax.Device]:
  """Devices that exist for the compiler alone, eight to a node."""
  from jax._src.lib import xla_client

  name = 'jax_rocm7_plugin'
  site = pathlib.Path(importlib.util.find_spec(name).origin).parents[1]
  path = site / 'jax_plugins' / 'xla_rocm7' / 'xla_rocm_plugin.so'
  plugin = xla_client.load_pjrt_plugin_dynamically('rocm', str(path))
  xla_client.initialize_pjrt_plugin('rocm')
  _register(xla_client, plugin)
  nodes = count // 8 if count % 8 == 0 else 1
  topology: Any = xla_client.make_c_api_device_topology(
    plugin,
    '',
    topology=f'1x{nodes}x{count // nodes}',
    target_config=_TARGET.read_text(),
  )
  return topology._make_compile_only_devices()


def _register(xla_client, plugin) -> None:
  """What a custom call of jax is compiled to on ROCm."""
  from jax_rocm7_plugin import rocm_plugin_extension as extension

  xla_client.register_custom_type_handler(
    'ROCM', functools.partial(extension.register_custom_type, plugin)
  )
  xla_client.register_custom_call_handler(
    'ROCM', functools.partial(extension.register_custom_call_target, plugin)
  )
  for name, value in extension.ffi_types().items():
    xla_client.register_custom_type(name, value, platform='ROCM')
  for name, value in extension.ffi_handlers().items():
    xla_client.register_custom_call_target(
      name, value, platform='ROCM', api_version=1
    )


if __name__ == '__main__':
  try:
    main()
  except config_lib.UsageError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
