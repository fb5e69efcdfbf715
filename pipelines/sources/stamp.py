# SPDX-License-Identifier: Apache-2.0
"""`verified.json`: which files of a folder have had their hashes compared.

To hash all shards takes minutes at each start of a large run. A file that is
the same as when its hash was compared, by its number in the file system and
the time of its last change, is not hashed again: names, sizes and these are
looked at. Records are compared with hashes of their own when they are read.
"""

import itertools
import json
import os
import pathlib
from collections.abc import Iterable

from pipelines import store
from pipelines.shards import copies, manifest

FILE_NAME = 'verified.json'


def open_folder(directory: str | os.PathLike[str]) -> manifest.Manifest:
  """Reads a manifest and compares hashes that were not compared yet.

  Raises:
    DataError: exit code 3, naming the file that is missing, added or damaged.
  """
  names = unverified(directory)
  compare(directory, names)
  if names:
    write(directory)
  return manifest.read(directory)


def unverified(directory: str | os.PathLike[str]) -> list[str]:
  """Checks names and sizes of all files; says whose hashes to compare.

  Raises:
    DataError: exit code 3, naming the file that is missing, added or damaged.
  """
  data = manifest.read(directory)
  files = manifest.scan(directory, data)
  if store.is_url(directory):
    return []  # Each file is hashed when it is copied.
  known = _read(directory, data)
  if len(known) != 2 * len(files):
    return list(files)
  return [
    name
    for name, number, time in zip(files, known[::2], known[1::2], strict=True)
    if files[name] != (number, time)
  ]


def compare(directory: str | os.PathLike[str], names: Iterable[str]) -> None:
  """Compares the hashes of files with those of the manifest.

  Raises:
    DataError: exit code 3, naming the file that differs.
  """
  hashes = manifest.hashes(manifest.read(directory))
  for name in names:
    with copies.held(directory, name, hashes[name]) as path:
      manifest.check_sha256(path, hashes[name])


def write(directory: str | os.PathLike[str]) -> bool:
  """Remembers that all hashes were compared; False, if it cannot be kept."""
  if store.is_url(directory):
    return True  # Copies are remembered one by one.
  data = manifest.read(directory)
  files = manifest.scan(directory, data)
  content = {
    'manifest': data.sha256,
    # Number and time of each, in the order of the manifest.
    'files': list(itertools.chain.from_iterable(files.values())),
  }
  path = pathlib.Path(directory, FILE_NAME)
  try:
    store.replace(path, json.dumps(content).encode())
  except OSError:
    return False
  return True


def _read(
  directory: str | os.PathLike[str], data: manifest.Manifest
) -> list[int]:
  """What is remembered of the files of this manifest."""
  try:
    content = json.loads(pathlib.Path(directory, FILE_NAME).read_bytes())
    same = content['manifest'] == data.sha256
    return list(content['files']) if same else []
  except (OSError, ValueError, KeyError, TypeError):
    return []  # Then all hashes are compared.
