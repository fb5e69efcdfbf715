# SPDX-License-Identifier: Apache-2.0
"""Builds ops/native for tests: as it is, with changes, or with other files.

Never in the source tree; once per content of the sources and machine.
"""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import jax

from ops import native

SOURCE = pathlib.Path(native.__file__).resolve().parent
# (file, what is in it exactly once, what is to be there)
Patch = tuple[str, str, str]


def missing(*programs: str) -> str | None:
  """Which of the programs are not installed; None: all are."""
  gone = [p for p in ('make', *programs) if not shutil.which(p)]
  return f'not installed: {", ".join(gone)}' if gone else None


def build(
  target: str = 'cpu',
  *patches: Patch,
  kernels: tuple[str, ...] = (),
  more: tuple[pathlib.Path, ...] = (),
  edge: int = 32,
  variables: tuple[str, ...] = (),
) -> pathlib.Path:
  """Compiles and returns the folder with what was made.

  Args:
    target: of the Makefile.
    *patches: changes of the sources.
    kernels: names of the .hip files; none: all.
    more: further .hip files.
    edge: of the matrix instructions, MFMA of the Makefile.
    variables: others of the Makefile, NAME=VALUE.

  Raises:
    ValueError: if a patch does not fit.
    RuntimeError: with the compiler's words, if it fails.
  """
  files = {str(p.relative_to(SOURCE)): p.read_text() for p in _sources()}
  files |= {path.name: path.read_text() for path in more}
  for name, old, new in patches:
    if files[name].count(old) != 1:
      raise ValueError(f'{name} has not exactly one {old!r}.')
    files[name] = files[name].replace(old, new)
  variables = (f'MFMA={edge}', *variables)
  key = repr((target, files, kernels, variables, jax.__version__))
  digest = hashlib.sha256(key.encode()).hexdigest()[:16]
  folder = pathlib.Path(tempfile.gettempdir(), f'zaya_ops_{digest}')
  if not folder.exists():
    aside = pathlib.Path(tempfile.mkdtemp(prefix=f'{folder.name}_'))
    _make(aside, files, target, kernels, variables)
    try:
      aside.rename(folder)
    except OSError:  # Another process was faster.
      shutil.rmtree(aside)
  made = folder / 'build'
  return (made if edge == 32 else made / f'mfma{edge}') / target


def _sources():
  shims = SOURCE.glob('shim/**/*.h')
  flat = (p for p in SOURCE.iterdir() if p.suffix in ('.hip', '.h', '.sh'))
  named = (SOURCE / name for name in ('Makefile', 'requirements.txt'))
  return sorted((*shims, *flat, *named))


def _make(folder, files, target, kernels, variables):
  for name, text in files.items():
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
  if kernels:
    names = ' '.join(f'{name}.hip' for name in ('library', *kernels))
    variables = (*variables, f'sources={names}')
  found = subprocess.run(
    ['make', target, f'PYTHON={sys.executable}', *variables],
    cwd=folder,
    env={k: v for k, v in os.environ.items() if k != 'MAKEFLAGS'},
    capture_output=True,
    text=True,
  )
  if found.returncode:
    shutil.rmtree(folder)
    raise RuntimeError(found.stdout + found.stderr)
