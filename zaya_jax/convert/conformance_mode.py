# SPDX-License-Identifier: Apache-2.0
"""--mode=conform: writes the conformance kit, or compares with it."""

import dataclasses
import json
import pathlib
import shutil
import sys
from typing import Literal

import numpy as np

from zaya_jax import config as config_lib
from zaya_jax.convert import conformance
from zaya_jax.hub import aside, leaves, packing
from zaya_jax.hub import folder as hub_folder
from zaya_jax.hub.quantized import choice as choice_lib
from zaya_jax.hub.tensors import errors
from zaya_jax.inference import activations


def main(config: config_lib.Config) -> int:
  """Writes the kit to `--output`, or checks `--source`, or our own model.

  Prints a table on stderr and one JSON object on stdout.

  Returns:
    0 if all that was given agrees, or our own model was rounded; else 3.

  Raises:
    UsageError: if both are named, or a path is not what it must be.
    FolderError: if the source cannot be read or has no name of the kit.
  """
  if config.source and config.output:
    raise config_lib.UsageError(
      f'--mode=conform writes the kit (--output={config.output}) or checks a '
      f'port (--source={config.source}), not both; name one.'
    )
  if config.output:
    _write(config.output)
    return 0
  quant = choice_lib.given(config)
  report = conformance.check(
    _read(config.source) if config.source else own(config.model, quant)
  )
  if quant:  # What is measured, and no mistake.
    report = dataclasses.replace(
      report, hint=f'The model was rounded: {quant}.'
    )
  report.print()
  print(json.dumps(report.summary()), flush=True)
  return 0 if report.agrees or quant else errors.FolderError.exit_code


def own(
  model: config_lib.ModelConfig,
  quant: choice_lib.Choice = choice_lib.NONE,
) -> dict[str, np.ndarray]:
  """Outputs of our own model on this device, in `model.dtype`, or float32."""
  about, inputs, _, _ = conformance.kit()
  dtype: Literal['bfloat16', 'float32'] = (
    'bfloat16' if model.dtype == 'bfloat16' else 'float32'
  )
  folder = str(conformance.KIT / 'model')
  config = dataclasses.replace(hub_folder.read_config(folder), dtype=dtype)
  arrays = packing.read(leaves.find(folder), quant)
  return activations.outputs(
    config, *arrays, inputs['tokens'], inputs['mask'], about['prompt']
  )


def _write(output: str) -> None:
  """Copies the kit to the new folder `output`, whole or not at all."""
  folder = aside.check(output)
  with aside.folder(folder, 0) as partial:
    shutil.copytree(conformance.KIT, partial, dirs_exist_ok=True)
  print(f'{folder}: start with its README.md', file=sys.stderr)


def _read(source: str) -> dict[str, np.ndarray]:
  """What a port gave."""
  if not pathlib.Path(source).exists():
    raise config_lib.UsageError(
      f'There is no file or folder {source}; name what a port gave, in '
      'safetensors (--source).'
    )
  return conformance.read(source)
