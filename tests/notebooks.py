# SPDX-License-Identifier: Apache-2.0
"""Executes the notebooks, each in a process and a folder of its own.

    python -m tests.notebooks [NAME ...]

prints how long each took and leaves it, with its pictures, in runs/notebooks.
"""

import base64
import os
import pathlib
import sys
import tempfile
import time
from unittest import mock

import nbclient
import nbformat

ROOT = pathlib.Path(__file__).parent.parent
FOLDER = ROOT / 'notebooks'
NAMES = sorted(path.stem for path in FOLDER.glob('*.ipynb'))
OUTPUT = ROOT / 'runs' / 'notebooks'


def read(name: str) -> nbformat.NotebookNode:
  """A notebook by its name, without '.ipynb'."""
  return nbformat.read(FOLDER / f'{name}.ipynb', as_version=4)


def execute(
  notebook: nbformat.NotebookNode, folder: pathlib.Path, *xla_flags: str
) -> float:
  """Runs a notebook in a folder, as Jupyter does; returns seconds.

  Raises:
    CellExecutionError: if a cell raises.
  """
  # Of the environment of the tests: one device, and broadcasting as usual.
  env = {
    'PYTHONPATH': os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
    'XLA_FLAGS': ' '.join(xla_flags),
    'JAX_NUMPY_RANK_PROMOTION': 'allow',
    'JAX_PLATFORMS': 'cpu',
    # Nothing of the user's own Jupyter, and nothing written there.
    'JUPYTER_DATA_DIR': str(folder / '.jupyter'),
    'IPYTHONDIR': str(folder / '.ipython'),
  }
  start = time.monotonic()
  with mock.patch.dict(os.environ, env):
    nbclient.NotebookClient(
      notebook,
      timeout=900,
      extra_arguments=['--IPKernelApp.log_level=40'],
      resources={'metadata': {'path': str(folder)}},
    ).execute()
  return time.monotonic() - start


def pictures(notebook: nbformat.NotebookNode) -> list[bytes]:
  """Its figures, as PNG files."""
  outputs = (out for cell in notebook.cells for out in cell.get('outputs', ()))
  found = (out.get('data', {}).get('image/png') for out in outputs)
  return [base64.b64decode(png) for png in found if png]


def main(names: list[str]) -> None:
  """Executes notebooks, all of them unless some are named."""
  OUTPUT.mkdir(parents=True, exist_ok=True)
  for name in names or NAMES:
    notebook = read(name)
    with tempfile.TemporaryDirectory() as folder:
      seconds = execute(notebook, pathlib.Path(folder))
    nbformat.write(notebook, OUTPUT / f'{name}.ipynb')
    for i, png in enumerate(pictures(notebook)):
      (OUTPUT / f'{name}_{i}.png').write_bytes(png)
    print(f'{name:<28}{seconds:6.0f} s', flush=True)
  print(f'with their outputs: {OUTPUT.relative_to(ROOT)}')


if __name__ == '__main__':
  main(sys.argv[1:])
