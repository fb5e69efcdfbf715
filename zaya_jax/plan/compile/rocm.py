# SPDX-License-Identifier: Apache-2.0
"""--plan.compile=rocm: the step compiled for MI300X, in a child process.

The child runs in an environment of its own (`make rocm-venv`): where the plugin
is installed, jax complains in every process that there is no AMD GPU.
"""

import json
import os
import pathlib
import subprocess
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.config import exit_codes
from zaya_jax.plan.compile import contracts
from zaya_jax.plan.cost import auto

ROOT = pathlib.Path(__file__).parents[3]
_TIMEOUT_S = 1800
# As in deploy/mi300x.env: compiled as it would run. (triton_gemm=false is
# needed: products in Triton that no GPU has tuned may not compile.)
_FLAGS = pathlib.Path(__file__).with_name('mi300x.flags')
# This package comes last: that environment has a jax of its own.
_CHILD = """
import runpy, sys
sys.path.append(sys.argv.pop())
runpy.run_module('zaya_jax.plan.compile.rocm_child', run_name='__main__')
"""


class CompileError(RuntimeError):
  """The step did not compile."""

  exit_code = exit_codes.INTERNAL


def compile_step(
  config: config_lib.Config, home: pathlib.Path | None = None
) -> dict[str, Any]:
  """What XLA:ROCm says of the training step.

  Args:
    config: of the run; --plan.devices devices are compiled for.
    home: the environment with the plugin and the libraries it wants; None:
      .venv-rocm of the working directory or of the repository.

  Returns:
    seconds and host_bytes that it took; arguments and temporary, bytes of a
    device; what `hlo.read` returns; asked and engines of
    `rocm_child.compile_step`; rematerialized, how often the compiler warned
    that it would gather an array whole to divide it anew.

  Raises:
    UsageError: if there is no such environment, or the step refuses the mesh.
    CompileError: if the compiler gives up, or takes half an hour.
  """
  if config.plan.chip != 'mi300x':
    raise config_lib.UsageError(
      f'--plan.compile=rocm compiles for mi300x and not for --plan.chip='
      f'{config.plan.chip}; choose one of the two.'
    )
  config = auto.of_plan(config)
  if home is None:
    here = pathlib.Path('.venv-rocm').absolute()
    home = here if here.exists() else ROOT / here.name
  python = home / 'bin' / 'python'
  if not python.exists():
    raise config_lib.UsageError(
      f'--plan.compile=rocm needs the compiler in {home}; run make rocm-venv '
      'once in a clone of the repository, and this command there.'
    )
  done = _run(python, home, config)
  if not done.returncode:
    warnings = done.stderr.count(contracts.WARNING)
    return {**json.loads(done.stdout), 'rematerialized': warnings}
  last = (done.stderr.strip().splitlines() or ['nothing was said'])[-1]
  if done.returncode == config_lib.UsageError.exit_code:
    raise config_lib.UsageError(last)
  raise CompileError(f'--plan.compile=rocm failed: {last}')


def _run(python, home, config) -> subprocess.CompletedProcess[str]:
  """The child, when it has ended."""
  kept = ('PATH', 'HOME', 'TMPDIR')
  environment = {k: os.environ[k] for k in kept if k in os.environ}
  try:
    return subprocess.run(
      [python, '-c', _CHILD, ROOT],
      input=config.to_flagfile(),
      capture_output=True,
      text=True,
      timeout=_TIMEOUT_S,
      check=False,
      env={
        **environment,
        'JAX_PLATFORMS': 'cpu',
        'JAX_TRACEBACK_FILTERING': 'off',  # So that the error is what ends it.
        'LD_LIBRARY_PATH': str(home / 'stubs'),
        'XLA_FLAGS': ' '.join(_flags(config)),
      },
    )
  except subprocess.TimeoutExpired:
    raise CompileError(
      f'--plan.compile=rocm did not end within {_TIMEOUT_S / 60:g} minutes; '
      'run it again where less else is running, or of a smaller mesh.'
    ) from None


def _flags(config):
  flags = _FLAGS.read_text().split()
  if config.ops.experts != 'ragged':
    return flags
  # Imports jax, of which a plan without a compiler has no need.
  from ops.experts import ragged

  return [*flags, ragged.FLAG]


def compare(plan: dict[str, Any], compiled: dict[str, Any]) -> dict[str, Any]:
  """The compiler's numbers beside those of the formulas: [formula, compiler].

  What a step keeps is in its arguments, with the batch; what it makes in
  passing is temporary.
  """
  held = plan['memory']
  kept = held['parameters'] + held['optimizer']
  total = compiled['arguments'] + compiled['temporary']
  sent = {}
  for collective in plan['collectives']:
    kind = collective['kind'].replace('permute', 'collective-permute')
    sent[kind] = sent.get(kind, 0) + collective['bytes']
  found = {}
  for kind, counted in compiled['collectives'].items():
    kind = kind.removeprefix('ragged-')
    found[kind] = found.get(kind, 0) + counted['bytes']
  kinds = sorted({*sent, *found})
  return {
    'memory kept': [kept, compiled['arguments']],
    'memory in passing': [held['total'] - kept, compiled['temporary']],
    'memory together': [held['total'], total],
    **{k: [sent.get(k, 0), found.get(k, 0)] for k in kinds},
  }
