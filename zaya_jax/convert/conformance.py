# SPDX-License-Identifier: Apache-2.0
"""--mode=conform: compares an implementation of ZAYA1, step by step.

The kit beside this file holds a tiny model and what `transformers` computes
with it in every submodule; tests/golden/make_conformance.py writes it.
"""

import dataclasses
import functools
import json
import pathlib
import shutil
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal

import ml_dtypes  # noqa: F401  Makes bfloat16 a NumPy dtype, for safetensors.
import numpy as np
import safetensors.numpy

from zaya_jax import config as config_lib
from zaya_jax.convert import conformance_table
from zaya_jax.hub import aside, leaves, packing
from zaya_jax.hub import folder as hub_folder
from zaya_jax.hub.quantized import choice as choice_lib
from zaya_jax.hub.tensors import errors
from zaya_jax.inference import activations

# Resolved: links out of a folder of weights are refused, and Bazel links.
KIT = pathlib.Path(__file__).resolve().with_name('kit')
_UNREADABLE = (
  *(OSError, KeyError, TypeError, ValueError),  # Also types NumPy lacks.
  safetensors.SafetensorError,
)
_SMALL = 5e-3  # A float32 difference up to here may be rounding.


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
  report = check(
    _read(config.source) if config.source else own(config.model, quant)
  )
  if quant:  # What is measured, and no mistake.
    report = dataclasses.replace(
      report, hint=f'The model was rounded: {quant}.'
    )
  report.print()
  print(json.dumps(report.summary()), flush=True)
  return 0 if report.agrees or quant else errors.FolderError.exit_code


def check(
  port: Mapping[str, Any] | Callable[[np.ndarray, np.ndarray], Mapping],
) -> conformance_table.Report:
  """Compares a port with the kit.

  Args:
    port: arrays by name, any of the kit's; or what makes them of tokens and
      mask, both [2, 12] int32. {'logits': ...} alone will do. An array may
      have the first row of the batch only.

  Raises:
    FolderError: if there is no name of the kit among them.
  """
  about, inputs, expected, _ = _kit()
  if callable(port):
    port = port(inputs['tokens'].copy(), inputs['mask'].copy())
  entries = about['tensors']
  unknown = tuple(sorted(set(port) - {entry['name'] for entry in entries}))
  if len(unknown) == len(port):
    raise errors.FolderError(
      'None of the names is in the kit'
      + (f' ({unknown[0]}, ...)' if unknown else ' (there are none)')
      + "; they must be those of the kit's README.md, such as 'logits'."
    )
  rows, coarse = [], False
  for entry in entries:
    row = conformance_table.Row(name=entry['name'])
    if row.name in port:
      found = np.asarray(port[row.name])
      coarse |= found.dtype.itemsize == 2 and found.dtype.kind not in 'iu'
      tolerance = entry['tolerance']['bfloat16' if coarse else 'float32']
      row = _compare(row.name, found, expected[row.name], tolerance)
    rows.append(row)
  return conformance_table.Report(
    rows=tuple(rows), unknown=unknown, hint=_hint(rows, port)
  )


def own(
  model: config_lib.ModelConfig,
  quant: choice_lib.Choice = choice_lib.NONE,
) -> dict[str, np.ndarray]:
  """Outputs of our own model on this device, in `model.dtype`, or float32."""
  about, inputs, _, _ = _kit()
  dtype: Literal['bfloat16', 'float32'] = (
    'bfloat16' if model.dtype == 'bfloat16' else 'float32'
  )
  folder = str(KIT / 'model')
  config = dataclasses.replace(hub_folder.read_config(folder), dtype=dtype)
  arrays = packing.read(leaves.find(folder), quant)
  return activations.outputs(
    config, *arrays, inputs['tokens'], inputs['mask'], about['prompt']
  )


def _compare(name, found, want, tolerance) -> conformance_table.Row:
  """The row of one tensor; where `want` is NaN or -1, nothing counts."""
  row = functools.partial(
    conformance_table.Row, name=name, tolerance=tolerance, verdict='differs'
  )
  note = ''
  if found.shape != want.shape:
    if found.shape[1:] != want.shape[1:] or found.shape[:1] != (1,):
      return row(note=f'shape {list(found.shape)}, expected {list(want.shape)}')
    want, note = want[:1], 'first row only'
  if found.dtype.kind not in 'biufV' or found.dtype.names:
    return row(note=f'type {found.dtype}, expected {want.dtype}')
  counted = _counted(want)
  bad = int((~np.isfinite(found[counted].astype(np.float64))).sum())
  if bad:
    return row(note=f'{bad} of {counted.sum()} values are NaN or infinite')
  error = _difference(found, want, want)
  verdict = 'agrees' if error <= tolerance else 'differs'
  return row(error=error, verdict=verdict, note=note)


def _counted(want: np.ndarray) -> np.ndarray:
  return want >= 0 if want.dtype.kind == 'i' else ~np.isnan(want)


def _difference(
  found: np.ndarray, other: np.ndarray, want: np.ndarray
) -> float:
  """How far two arrays are apart where `want` counts, in its spread."""
  counted = _counted(want)
  if want.dtype.kind == 'i':
    return float((found != other)[counted].mean())
  apart = found[counted].astype(np.float64) - other[counted]
  return float(np.abs(apart).max() / np.ptp(want[counted]))


def _hint(rows: list[conformance_table.Row], port: Mapping[str, Any]) -> str:
  """The likely cause of the first difference, in sentences."""
  at = next((i for i, row in enumerate(rows) if row.verdict == 'differs'), None)
  if at is None:
    return ''
  about, _, expected, traps = _kit()
  entry, row = about['tensors'][at], rows[at]
  skipped = []
  for before in reversed(rows[:at]):
    if before.verdict == 'agrees':
      break
    skipped.insert(0, before.name)
  lines = [f'It must be: {entry["meaning"]}.']
  found = np.asarray(port[row.name])
  if row.error is None:
    lines += [f'{row.note}.', *_known(entry)]
  elif _only_padded(row, found, expected[row.name]):
    lines.append(
      'Only the row with padding differs: set h to 0 at padding before the '
      'projections of attention, mask padded keys, and count positions from '
      'the first real token.'
    )
  elif mistake := _recognize(entry, found[0], expected[row.name][0], traps):
    lines.append(f'These are the values of a known mistake: {mistake}.')
  else:
    lines += _known(entry)
    if row.error < _SMALL and row.error:
      lines.append(
        'A difference this small may be TF32 or bfloat16 in matrix products; '
        'compare in full float32.'
      )
  if skipped and 'known mistake:' not in lines[-1]:
    given = ', '.join(skipped)
    if len(skipped) > 3:
      given = f'{skipped[0]} to {skipped[-1]}, {len(skipped)} tensors'
    lines.append(
      f'Not checked just before it: {given}; give these too to see which is '
      'the first.'
    )
  return '\n'.join(lines)


def _known(entry: dict[str, Any]) -> list[str]:
  return [f'Known mistake: {mistake}.' for mistake in entry['traps']]


def _only_padded(
  row: conformance_table.Row, found: np.ndarray, want: np.ndarray
) -> bool:
  """Whether the first row agrees; attention alone knows of padding."""
  if len(found) == 1 or 'router' in row.name or 'moe' in row.name:
    return False
  alone = _compare(row.name, found[:1], want[:1], row.tolerance)
  return alone.verdict == 'agrees'


def _recognize(entry, found, want, traps) -> str:
  """The known mistake whose values are ten times nearer, or ''."""
  near = {}
  for i, mistake in enumerate(entry['traps']):
    if (wrong := traps.get(f'{entry["name"]}/{i}')) is not None:
      near[mistake] = _difference(found, wrong, want)
  best = min(near, key=near.get, default='')
  limit = _difference(found, want, want) / 10
  return best if best and near[best] <= limit else ''


@functools.cache
def _kit() -> tuple[dict, dict, dict, dict]:
  """The manifest, inputs, expected values and values of known mistakes."""
  about = json.loads((KIT / 'manifest.json').read_text(encoding='utf-8'))
  names = ('inputs', 'expected', 'traps')
  return about, *(
    safetensors.numpy.load_file(KIT / f'{name}.safetensors') for name in names
  )


def _write(output: str) -> None:
  """Copies the kit to the new folder `output`, whole or not at all."""
  folder = aside.check(output)
  with aside.folder(folder, 0) as partial:
    shutil.copytree(KIT, partial, dirs_exist_ok=True)
  print(f'{folder}: start with its README.md', file=sys.stderr)


def _read(source: str) -> dict[str, np.ndarray]:
  """Every tensor of a safetensors file, or of those in a folder."""
  path = pathlib.Path(source)
  if not path.exists():
    raise config_lib.UsageError(
      f'There is no file or folder {source}; name what a port gave, in '
      'safetensors (--source).'
    )
  files = sorted(path.glob('*.safetensors')) if path.is_dir() else [path]
  if not files:
    raise errors.FolderError(
      f'{source} has no *.safetensors; save what the port gave in that format.'
    )
  arrays = {}
  for file in files:
    try:
      new = safetensors.numpy.load_file(file)
    except _UNREADABLE as error:
      raise errors.FolderError(
        f'{file} cannot be read as safetensors: {error}.'
      ) from error
    if twice := sorted(arrays.keys() & new.keys()):
      raise errors.FolderError(
        f'{file}: {twice[0]} is in another file of {source} too; keep one.'
      )
    arrays |= new
  return arrays
