# SPDX-License-Identifier: Apache-2.0
"""--mode=import: a Hugging Face ZAYA folder becomes a run to start from.

Tensors keep their type and are copied one part at a time, so memory does not
grow with the model. The run has parameters and no optimizer: score it, sample
from it, export it, or start another run with --restore.
"""

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from zaya_jax import config as config_lib
from zaya_jax.checkpoint import errors
from zaya_jax.checkpoint.writing import stream
from zaya_jax.convert import adapters, run_folder
from zaya_jax.hub import aside
from zaya_jax.hub import folder as hub_folder
from zaya_jax.hub import names as hub_names
from zaya_jax.hub.adapters import peft

_HEADROOM = 1.02  # Free bytes asked for, per byte of tensors.


def main(config: config_lib.Config) -> None:
  """Writes the run `--output` from the folder `--source`.

  Raises:
    UsageError: if a flag is missing, or `--output` in use or in `--source`.
    FolderError: if the folder cannot be read, or the disk is full.
    CheckpointError: if it holds NaN or Inf.
  """
  source, output = config.source, config.output
  output = aside.check(output, source)
  if peft.is_folder(source):
    adapters.import_(config, source, output)
    return
  model = hub_folder.read_config(source).computed_as(config.model)
  tokenizer = hub_folder.read_tokenizer(source, model)
  hub_folder.read_stop_ids(source)  # Refused now rather than when it is needed.
  found = hub_folder.find_leaves(source, model)
  for note in hub_folder.read_notes(source):
    print(f'note: {note}')
  settings = run_folder.settings(config, output, tokenizer, model=model)
  _write_aside(output, source, settings, found, tokenizer)
  print(f'imported {source} to {output}')


def _write_aside(output, source, settings, found, tokenizer) -> None:
  """Writes the run aside, and gives it its name at the end."""
  tree = {
    part: hub_names.nest(
      {path: _array(source, part, path, leaf) for path, leaf in leaves.items()}
    )
    for part, leaves in found.items()
  }
  total = sum(leaf.nbytes for part in found.values() for leaf in part.values())
  with aside.folder(output, int(total * _HEADROOM)) as partial:
    hub_folder.keep_files(source, partial)
    known = tokenizer.sha256 if tokenizer else ''
    run_folder.write(partial, settings, tree, known, _progress(total))


def _array(
  source: str, part: str, path: str, leaf: hub_folder.Leaf
) -> stream.Array:
  """An array of the folder, none of whose values are NaN or Inf."""

  def parts() -> Iterator[tuple[Any, np.ndarray]]:
    for index, values in leaf.parts():
      if not np.isfinite(values).all():
        raise errors.not_finite(source, [f'{part}/{path}'])
      yield index, values

  return stream.Array(leaf.shape, leaf.dtype, leaf.chunk, parts)


def _progress(total: int) -> Callable[[int], None]:
  """Shows how far it is: on a terminal always, in a file now and then."""
  started, terminal = time.monotonic(), sys.stderr.isatty()
  done, shown = 0, started

  def show(count: int) -> None:
    nonlocal done, shown
    done += count
    now = time.monotonic()
    if done < total and now - shown < (0.2 if terminal else 10):
      return
    if not terminal and now - started < 10:
      return  # It was done before anyone wondered.
    shown = now
    line = (
      f'importing {done / 2**30:.2f} of {total / 2**30:.2f} GiB, '
      f'{done / 2**20 / max(now - started, 1e-3):,.0f} MiB/s'
    )
    end = '\r' if terminal and done < total else '\n'
    print(f'{line:<60}', end=end, file=sys.stderr, flush=True)

  return show
