# SPDX-License-Identifier: Apache-2.0
"""--mode=report: the page of runs, beside each other, or of a machine file."""

import os
import pathlib
from collections.abc import Callable

from zaya_jax import config as config_lib
from zaya_jax.bench.machine import file
from zaya_jax.report import kernels, machine, overview, page, serve


def main(config: config_lib.Config) -> None:
  """Writes the page and prints where it is, or serves it.

  Raises:
    UsageError: if there is no run, or no place for the page.
  """
  source = config.source or config.run_dir
  if source.endswith('.json'):
    return _machine(config, source)
  # A folder may have a comma in its name.
  names = [source] if os.path.exists(source) else source.split(',')
  folders = [_run_of(name) for name in dict.fromkeys(filter(None, names))]
  path = _path(config, folders)
  for folder in folders:
    kernels.summarise(folder)
  if config.serve:
    return serve.serve(folders, config.report.port)
  _written(path, lambda: overview.write(folders, path))


def _machine(config: config_lib.Config, source: str) -> None:
  """The page of a machine file, beside it."""
  if config.serve:
    raise config_lib.UsageError(
      f'--serve shows runs, and --source={source} is a machine file; without '
      '--serve a page is written.'
    )
  path = page.path(config.output or f'{source.removesuffix(".json")}.html')
  found = machine.make(file.read(source), source)
  _written(path, lambda: page.write(found, path))


def _written(path: pathlib.Path, write: Callable[[], None]) -> None:
  """Writes a page and prints where it is."""
  try:
    write()
  except OSError as error:
    raise config_lib.UsageError(
      f'{path} cannot be written: {error.strerror}; choose another place with '
      '--output=FILE.html.'
    ) from error
  print(path)


def _run_of(folder: str) -> str:
  """The run of a checkpoint: nothing is written into checkpoints and models.

  Raises:
    UsageError: if the folder is a Hugging Face model.
  """
  path = pathlib.Path(folder)
  if next(path.glob('*.safetensors'), None):
    raise config_lib.UsageError(
      f'--source={folder} is a Hugging Face folder, which has no metrics; name '
      'a run, or look into the model with --report.router.'
    )
  whole = path.absolute()
  is_one = whole.name.isdecimal() and whole.parent.name == 'checkpoints'
  return os.path.normpath(path / '..' / '..') if is_one else folder


def _path(config: config_lib.Config, folders: list[str]) -> pathlib.Path:
  """Of one run in its folder; of several in the one that holds them all."""
  if config.output:
    return page.path(config.output)
  if len(folders) == 1:
    return pathlib.Path(folders[0]) / overview.NAME
  parents = [os.path.dirname(os.path.abspath(folder)) for folder in folders]
  return (
    pathlib.Path(os.path.relpath(os.path.commonpath(parents))) / overview.NAME
  )
