# SPDX-License-Identifier: Apache-2.0
"""Builds a wheel of the conformance kit and of what compares with it.

It takes modules of zaya_jax and rewrites their imports; a repository has one of
each.
"""

import pathlib
import re
import shutil

import setuptools
from setuptools.command import build_py

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGE = 'zaya_conform'
MODULES = (
  'zaya_jax.config.exit_codes',
  'zaya_jax.convert.conformance',
  'zaya_jax.convert.conformance_table',
  'zaya_jax.hub.tensors.errors',
)
KIT = 'zaya_jax/convert/kit'
# ml_dtypes comes with jax, where there is jax.
NEEDS = ('ml_dtypes>=0.5', 'numpy', 'rich', 'safetensors')


def rewritten(source: str) -> str:
  """A module whose imports name the others as the wheel has them.

  Raises:
    ValueError: if it imports of zaya_jax what the wheel lacks.
  """
  for module in MODULES:
    package, _, name = module.rpartition('.')
    source = source.replace(
      f'from {package} import {name}\n', f'from {PACKAGE} import {name}\n'
    )
  if left := re.search(r'^\s*(from|import) zaya_jax.*$', source, re.M):
    raise ValueError(f'The wheel has no {left[0].strip()!r}: MODULES of setup.')
  return source


def version() -> str:
  """Of the repository: the kit changes with it."""
  text = (ROOT / 'zaya_jax/config/__init__.py').read_text('utf-8')
  (found,) = re.findall(r"^VERSION = '(.+)'$", text, re.M)
  return found


def needs() -> list[str]:
  """Requirements, in the ranges of the repository where it has them."""
  lines = (ROOT / 'requirements.txt').read_text('utf-8').splitlines()
  ranges = {re.split('[<>=]', line)[0]: line for line in lines}
  return [ranges.get(name, name) for name in NEEDS]


def assemble(package: pathlib.Path) -> None:
  """Writes the package from modules of the repository."""
  package.mkdir(parents=True)
  for module in MODULES:
    path = ROOT / f'{module.replace(".", "/")}.py'
    text = rewritten(path.read_text('utf-8'))
    (package / path.name).write_text(text, 'utf-8')
  for path in (*(HERE / PACKAGE).glob('*.py'), ROOT / 'LICENSE'):
    shutil.copy(path, package)
  shutil.copytree(ROOT / KIT, package / 'kit')


class Build(build_py.build_py):
  """Writes the package where the wheel is packed."""

  def run(self) -> None:
    """Writes it, without what an older build has left."""
    package = pathlib.Path(self.build_lib) / PACKAGE
    shutil.rmtree(package, ignore_errors=True)
    assemble(package)


if __name__ == '__main__':
  setuptools.setup(
    version=version(), install_requires=needs(), cmdclass={'build_py': Build}
  )
