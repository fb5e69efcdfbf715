# SPDX-License-Identifier: Apache-2.0
"""Builds what a release is and checks it; says how to tag it: make release.

Nothing is uploaded and nothing is tagged. The version stands in one place,
`VERSION` of zaya_jax/config/__init__.py.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
DIST = ROOT / 'dist'


def version() -> str:
  """Of the package."""
  text = (ROOT / 'zaya_jax/config/__init__.py').read_text('utf-8')
  (found,) = re.findall(r"^VERSION = '(.+)'$", text, re.M)
  return found


def faults(number: str, log: str, cited: str) -> list[str]:
  """What CHANGELOG.md and CITATION.cff lack for a release, in sentences."""
  head = re.search(
    rf'^## \[{re.escape(number)}\] - (\d{{4}}-\d\d-\d\d)$(.*?)(?=^## |\Z)',
    log,
    re.M | re.S,
  )
  if not head:
    return [f'CHANGELOG.md has no section "## [{number}] - YYYY-MM-DD".']
  found = []
  if not re.search(r'^[^#\n]', head[2], re.M):
    found.append(f'CHANGELOG.md says nothing under [{number}].')
  waiting = re.search(r'^## \[Unreleased\]$(.*?)(?=^## )', log, re.M | re.S)
  if waiting and re.search(r'^- \S', waiting[1], re.M):
    found.append(
      f'CHANGELOG.md has changes under [Unreleased]; they belong to [{number}].'
    )
  for line in (f'version: {number}', f'date-released: {head[1]}'):
    if f'\n{line}\n' not in f'\n{cited}\n':
      found.append(f'CITATION.cff does not say "{line}".')
  return found


def untidy(number: str) -> list[str]:
  """What of git is in the way of a tag, in sentences."""
  found = []
  if _run('git', 'status', '--porcelain'):
    found.append('Files are changed or new; commit or remove them.')
  if _run('git', 'tag', '--list', f'v{number}'):
    found.append(f'The tag v{number} is there; raise VERSION.')
  return found


def main() -> int:
  """Prints what is wrong and ends with 1, or builds and prints the commands."""
  number = version()
  read = lambda name: (ROOT / name).read_text('utf-8')
  wrong = faults(number, read('CHANGELOG.md'), read('CITATION.cff'))
  wrong += untidy(number)
  if wrong:
    print(f'{number} cannot be released:', *wrong, sep='\n  ', file=sys.stderr)
    return 1
  for path in _build(number):
    print(f'{path.relative_to(ROOT)}  {path.stat().st_size:,} bytes')
  print(f'To release it:\n  git tag -a v{number} -m "zaya_jax {number}"')
  print(f'  git push origin v{number}')
  return 0


def _build(number: str) -> list[pathlib.Path]:
  """Wheel and sdist in dist/: the wheel installs, the sdist makes it again."""
  shutil.rmtree(DIST, ignore_errors=True)
  with tempfile.TemporaryDirectory() as folder:
    tools, empty, again = (pathlib.Path(folder) / x for x in 'abc')
    _environment(tools, 'build')
    _run(tools / 'bin/python', '-m', 'build', '--sdist', '--wheel', ROOT)
    [wheel], [source] = DIST.glob('*.whl'), DIST.glob('*.tar.gz')
    pip = (tools / 'bin/python', '-m', 'pip', 'wheel', '-q', '--no-deps')
    _run(*pip, '-w', again, source)
    [other] = again.glob('*.whl')
    if odd := {*_names(wheel)} ^ {*_names(other)}:
      raise SystemExit(f'The sdist makes another wheel: {sorted(odd)[:5]}.')
    _environment(empty, wheel)
    said = _run(empty / 'bin/zaya', '--version', cwd=folder)
    if not said.startswith(f'zaya_jax {number} '):
      raise SystemExit(f'The installed command says {said!r}, not {number}.')
    _run(
      *(empty / 'bin/zaya', 'plan', '--flagfile=configs/quickstart.flags'),
      cwd=folder,
    )
  return [wheel, source]


def _names(wheel: pathlib.Path) -> list[str]:
  return zipfile.ZipFile(wheel).namelist()


def _environment(folder: pathlib.Path, package: pathlib.Path | str) -> None:
  venv.create(folder, with_pip=True)
  quiet = ('-q', '--disable-pip-version-check', '--no-compile')
  _run(folder / 'bin/python', '-m', 'pip', 'install', *quiet, package)


def _run(*words: pathlib.Path | str, cwd: pathlib.Path | str = ROOT) -> str:
  """What a command prints; ends with its errors where it fails."""
  done = subprocess.run(
    [str(word) for word in words],
    cwd=cwd,
    capture_output=True,
    text=True,
    check=False,
  )
  if done.returncode:
    raise SystemExit(f'{words[0]} failed:\n{done.stdout}{done.stderr}')
  return done.stdout


if __name__ == '__main__':
  sys.exit(main())
