# SPDX-License-Identifier: Apache-2.0
"""Executes the notebooks, each in a process and a folder of its own.

    python -m tests.notebooks [NAME ...]

prints how long each took and leaves it, with its pictures, in runs/notebooks.
With --keep in front, nothing is executed: what runs/notebooks has is stored in
notebooks/, where readers and the site see it.
"""

import base64
import copy
import datetime
import hashlib
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
_LINES = 12  # Of a long stream, from its start and from its end.


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


def digest(notebook: nbformat.NotebookNode) -> str:
  """Of its code: outputs of other code are stale."""
  code = (c.source for c in notebook.cells if c.cell_type == 'code')
  return hashlib.sha256('\0'.join(code).encode()).hexdigest()[:16]


def stale(notebook: nbformat.NotebookNode) -> bool:
  """Whether its outputs are those of other code, or there are none."""
  return notebook.metadata.get('executed', {}).get('code') != digest(notebook)


def keep(name: str) -> None:
  """Stores the outputs of runs/notebooks in the notebook.

  Raises:
    ValueError: if they are those of other code.
  """
  notebook, path = read(name), OUTPUT / f'{name}.ipynb'
  done = nbformat.read(path, as_version=4)
  if digest(done) != digest(notebook):
    raise ValueError(f'{name} has changed since it was executed; do it again.')
  for cell, other in zip(notebook.cells, done.cells, strict=True):
    if cell.cell_type == 'code':
      cell.outputs = shortened(other.outputs)
      cell.execution_count = other.execution_count
  day = datetime.date.fromtimestamp(path.stat().st_mtime)
  notebook.metadata['executed'] = {
    'code': digest(notebook),
    'date': day.isoformat(),
  }
  # Or pages of the site would have its code without colors.
  notebook.metadata['language_info'] = {'name': 'python'}
  nbformat.write(notebook, FOLDER / f'{name}.ipynb')


def shortened(
  outputs: list[nbformat.NotebookNode],
) -> list[nbformat.NotebookNode]:
  """The same with the lines of each stream together, and of many some."""
  made: list[nbformat.NotebookNode] = []
  for out in outputs:
    same = made and made[-1].get('name') == out.get('name', '')
    if same:
      made[-1].text += out.text
    else:
      made.append(copy.deepcopy(out))
  for out in made:
    lines = out.get('text', '').splitlines()
    if len(lines) > 2 * _LINES:
      kept = [*lines[:_LINES], '...', *lines[-_LINES:]]
      out.text = '\n'.join(kept) + '\n'
  return [x for x in made if x.get('name') != 'stderr']


def main(names: list[str]) -> None:
  """Executes notebooks, or keeps their outputs: all unless some are named."""
  if names[:1] == ['--keep']:
    for name in names[1:] or NAMES:
      keep(name)
    return
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
