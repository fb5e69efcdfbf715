# SPDX-License-Identifier: Apache-2.0
"""A corpus of code and prose that anyone can build from packages by name.

    python -m benchmarks.corpus --output=corpus [--megabytes=174]

Debian's Linux sources and documentation (apt-get, dpkg-deb) and packages of
Python (pip), as JSON lines of "text", "project" and "file". Whole projects are
held out, so no file of them is near one that is trained on; equal texts are
kept once. manifest.json names each package with its version and hash, and the
hash of each result: the same packages give the same bytes. Run apt-get update
before, as root: old lists name old packages. Debian replaces its kernel from
time to time; then the manifest says another version, the text is another, and
no score on it compares with those of before. All texts are read before some
are drawn: 3 GB of memory, two minutes.
"""

import argparse
import hashlib
import json
import pathlib
import random
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

# Of each kind a share of the whole; what one kind lacks the kernel fills.
SHARES = {'python': 0.4, 'prose': 0.1, 'kernel': 0.5}
PYTHON = (
  'astropy==7.1.0',
  'django==5.2.4',
  'matplotlib==3.10.3',
  'networkx==3.5',
  'pandas==2.3.1',
  'scikit-learn==1.7.1',
  'scipy==1.16.0',
  'sqlalchemy==2.0.41',
  'statsmodels==0.14.5',
  'sympy==1.14.0',
  'transformers==5.17.0',
  'twisted==25.5.0',
)
PROSE = ('git-doc', 'perl-doc', 'vim-runtime')
KERNEL = 'linux-source-6.1'
# Projects that no run trains on. Of the kernel two folders make a project.
HELD_OUT = (
  'networkx',
  'git-doc',
  'linux/fs/ext4',
  'linux/drivers/i2c',
  'linux/Documentation/filesystems',
)
_ENDINGS = {
  'python': ('.py',),
  'prose': ('.txt', '.pod'),
  'kernel': ('.c', '.h', '.rst', '.txt', '.S'),
}
_BYTES = 200, 200_000  # Of a file: neither a stub nor a table.


class Text(NamedTuple):
  """A file of a package."""

  project: str
  file: str
  text: str


def main() -> None:
  """Builds the corpus."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or '').partition('\n')[0]
  )
  parser.add_argument('--output', type=pathlib.Path, required=True)
  parser.add_argument('--megabytes', type=int, default=174)
  parser.add_argument('--seed', type=int, default=0, help='of the order')
  args = parser.parse_args()
  if args.output.exists():
    parser.error(f'--output={args.output} exists; name another, or remove it.')
  with tempfile.TemporaryDirectory() as folder:
    packages = pathlib.Path(folder)
    download(packages)
    texts = {kind: files_of(kind, packages) for kind in SHARES}
    rng = random.Random(args.seed)
    kept = choose(texts, args.megabytes * 1_000_000, rng)
    found = write(args.output, kept)
    found |= {'megabytes': args.megabytes, 'packages': hashes(packages)}
  path = args.output / 'manifest.json'
  path.write_text(json.dumps(found, indent=2) + '\n')
  print(json.dumps({k: v for k, v in found.items() if k != 'packages'}))


def download(folder: pathlib.Path) -> None:
  """Fetches all packages, by the clients of their registries."""
  print('downloading packages ...', file=sys.stderr)
  for command in (
    ['apt-get', '-qq', '-o', 'APT::Sandbox::User=root', 'download']
    + [KERNEL, *PROSE],
    [sys.executable, '-m', 'pip', 'download', '-qq', '--no-deps']
    + ['--disable-pip-version-check', '--python-version=3.11']
    + ['--platform=manylinux_2_28_x86_64', '--platform=manylinux2014_x86_64']
    + ['--only-binary=:all:', *PYTHON],
  ):
    try:
      subprocess.run(command, cwd=folder, check=True)
    except FileNotFoundError:
      raise SystemExit(
        f'{command[0]} is missing: run this on Debian.'
      ) from None
    except subprocess.CalledProcessError:
      raise SystemExit(
        f'{command[0]} could not fetch a package; as root, run apt-get update.'
      ) from None


def hashes(folder: pathlib.Path) -> dict[str, str]:
  """SHA-256 of each package file."""
  return {
    path.name: hashlib.sha256(path.read_bytes()).hexdigest()
    for path in sorted(folder.iterdir())
  }


def files_of(kind: str, packages: pathlib.Path) -> Iterator[Text]:
  """The texts of a kind, always in the same order."""
  if kind == 'python':
    for path in sorted(packages.glob('*.whl')):
      yield from _wheel(path)
    return
  for name in PROSE if kind == 'prose' else (KERNEL,):
    [path] = packages.glob(f'{name}_*.deb')
    with tempfile.TemporaryDirectory() as folder:
      root = pathlib.Path(folder)
      subprocess.run(['dpkg-deb', '-x', path, root], check=True)
      if kind == 'kernel':
        [archive] = root.rglob('linux-source-*.tar.xz')
        yield from _kernel(archive)
      else:
        yield from _tree(name, root)


def _wheel(path: pathlib.Path) -> Iterator[Text]:
  project = path.name.partition('-')[0].lower().replace('_', '-')
  with zipfile.ZipFile(path) as archive:
    for name in sorted(archive.namelist()):
      if name.endswith(_ENDINGS['python']):
        yield from _text(project, name, archive.read(name))


def _kernel(path: pathlib.Path) -> Iterator[Text]:
  with tarfile.open(path) as archive:  # In its own order, read once.
    for member in archive:
      parts = member.name.split('/')[1:]
      if member.isfile() and member.name.endswith(_ENDINGS['kernel']):
        data = archive.extractfile(member)
        project = '/'.join(['linux', *parts[:-1][:2]])
        if data is not None:
          yield from _text(project, '/'.join(parts), data.read())


def _tree(project: str, root: pathlib.Path) -> Iterator[Text]:
  for path in sorted(root.rglob('*')):
    if path.is_file() and path.name.endswith(_ENDINGS['prose']):
      yield from _text(project, str(path.relative_to(root)), path.read_bytes())


def _text(project: str, file: str, data: bytes) -> Iterator[Text]:
  """One text, or none: of another size, or no UTF-8."""
  if _BYTES[0] <= len(data) <= _BYTES[1]:
    try:
      yield Text(project, file, data.decode())
    except UnicodeDecodeError:
      return


def choose(
  texts: dict[str, Iterable[Text]], total: int, rng: random.Random
) -> list[Text]:
  """Different texts of all kinds at random, `total` bytes of them or less.

  All that are held out are kept and count; the last kind fills what the others
  leave.
  """
  kept: list[Text] = []
  seen: set[bytes] = set()
  used, share = 0, 0.0
  for kind, of_kind in texts.items():
    share += SHARES[kind]
    drawn = list(of_kind)
    rng.shuffle(drawn)
    for text in sorted(drawn, key=lambda text: text.project not in HELD_OUT):
      data = text.text.encode()
      digest = hashlib.sha256(data).digest()
      held = text.project in HELD_OUT
      if digest in seen or not (held or used + len(data) <= share * total):
        continue
      seen.add(digest)
      kept.append(text)
      used += len(data)
  rng.shuffle(kept)
  return kept


def write(output: pathlib.Path, kept: list[Text]) -> dict[str, Any]:
  """Writes train.jsonl and held_out.jsonl; what is in them, by project."""
  output.mkdir(parents=True)
  found: dict[str, Any] = {}
  for name, held in (('train', False), ('held_out', True)):
    texts = [t for t in kept if (t.project in HELD_OUT) == held]
    lines = ''.join(json.dumps(t._asdict()) + '\n' for t in texts).encode()
    (output / f'{name}.jsonl').write_bytes(lines)
    found[name] = {
      'documents': len(texts),
      'bytes': sum(len(t.text.encode()) for t in texts),
      'sha256': hashlib.sha256(lines).hexdigest(),
    }
  return found


if __name__ == '__main__':
  main()
