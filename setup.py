# SPDX-License-Identifier: Apache-2.0
"""Builds a wheel in which all packages lie in zaya_jax; the rest: pyproject.

In the repository `ops` and `pipelines` stand beside `zaya_jax`, of which they
know nothing. Other people have packages of such names, so that a wheel has
`zaya_jax.ops` and `zaya_jax.pipelines`, and its imports say so. An editable
installation is the repository as it is.
"""

import ast
import shutil
import sys

import setuptools
from setuptools.command import build_py

HOME, MOVED = 'zaya_jax', ('ops', 'pipelines', 'configs')


def moved(name: str) -> str:
  """The name in a wheel of a package of the repository."""
  return f'{HOME}.{name}' if name.split('.')[0] in MOVED else name


def rewritten(source: str) -> str:
  """A module as a wheel has it: imports name packages as they are there.

  Raises:
    ValueError: if an import cannot say it.
  """
  lines = source.splitlines(keepends=True)
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.ImportFrom | ast.Import):
      line, start = lines[node.lineno - 1], node.col_offset
      old, new = _changed(node)
      assert line[start:].startswith(old), line
      lines[node.lineno - 1] = line[:start] + new + line[start + len(old) :]
  return ''.join(lines)


def _changed(node: ast.ImportFrom | ast.Import) -> tuple[str, str]:
  """How a statement begins, and how it begins in a wheel."""
  if isinstance(node, ast.ImportFrom):
    name = node.module or ''
    return (
      (f'from {name}', f'from {moved(name)}') if not node.level else ('', '')
    )
  if all(moved(alias.name) == alias.name for alias in node.names):
    return '', ''
  alias, *others = node.names
  if others or '.' in alias.name:
    raise ValueError(f'Write `from ... import ...`: {ast.unparse(node)}')
  return f'import {alias.name}', f'from {HOME} import {alias.name}'


class Build(build_py.build_py):
  """Copies the packages to their places in a wheel."""

  def finalize_options(self) -> None:
    """Names the packages of data as those of modules."""
    super().finalize_options()
    data = self.package_data.items()
    self.package_data = {moved(name): globs for name, globs in data}

  def run(self) -> None:
    """Copies, without what an older build has left."""
    shutil.rmtree(self.build_lib, ignore_errors=True)
    super().run()

  def build_module(self, module, module_file, package):
    """Copies a module and rewrites its imports."""
    copied = super().build_module(module, module_file, package)
    with open(copied[0], encoding='utf-8') as file:
      source = rewritten(file.read())
    with open(copied[0], 'w', encoding='utf-8') as file:
      file.write(source)
    return copied


def main() -> None:
  """Builds what setuptools is asked for."""
  tops = (HOME, *MOVED)
  names = setuptools.find_packages(include=[f'{top}*' for top in tops])
  if {'editable_wheel', 'develop'} & {*sys.argv}:
    setuptools.setup(packages=names)
    return
  names.append('configs')  # Presets: data alone.
  setuptools.setup(
    packages=[moved(name) for name in names],
    package_dir={moved(name): name for name in MOVED},
    cmdclass={'build_py': Build},
  )


if __name__ == '__main__':
  main()
