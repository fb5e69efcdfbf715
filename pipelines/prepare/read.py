# SPDX-License-Identifier: Apache-2.0
"""Finds the files of `--data.input` and turns them into documents.

A text file is one document; each line of a .jsonl and each row of a .parquet
is one. Documents come in a fixed order and in pieces, so that neither a large
file nor a large corpus has to fit into memory.
"""

import codecs
import glob
import hashlib
import json
import os
import pathlib
import sysconfig
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import zstandard

from pipelines import chat, errors
from pipelines.prepare import rows

STDLIB = 'stdlib'

# Distributions differ in these, so leaving them out keeps the text alike.
_NOT_STDLIB = frozenset({
    'dist-packages', 'idle_test', 'site-packages', 'test', 'tests',
    '__pycache__',
})  # fmt: skip
_BLOCK = 2**20  # Bytes that are read at once.
_SNIFF = 2**13  # Bytes in which a NUL makes a file binary.


class Source:
  """The files behind `--data.input`.

  Attributes:
    files: name to path, sorted by name.
    skipped: name to reason, of files and of rows ('FILE:LINE'); grows while
      `documents` runs.
    used: names of files that gave text; grows likewise.
  """

  def __init__(
    self,
    text_input: str,
    text_field: str,
    template: Callable[[], chat.Template] = chat.none,
  ):
    self.input = text_input
    self.files = find(text_input)
    self.skipped: dict[str, str] = {}
    self.used: dict[str, None] = {}
    self._rows = rows.Rows(text_field, template, self.skipped)

  @property
  def sha256(self) -> str:
    """Hash of names and sizes, to notice that the input is another one."""
    lines = [f'{n}\0{p.stat().st_size}\n' for n, p in self.files.items()]
    return hashlib.sha256(''.join(lines).encode()).hexdigest()

  def documents(self) -> Iterator[rows.Document]:
    """Yields all documents that are not empty, in a fixed order."""
    for name, path in self.files.items():
      for document in self._read(name, path):
        self.used[name] = None
        yield document

  def _read(self, name: str, path: pathlib.Path) -> Iterator[rows.Document]:
    if name.endswith(('.jsonl', '.jsonl.zst')):
      return _read_jsonl(name, path, self._rows)
    if name.endswith('.parquet'):
      return _read_parquet(name, path, self._rows)
    return self._read_text(name, path)

  def _read_text(
    self, name: str, path: pathlib.Path
  ) -> Iterator[rows.Document]:
    reason = _why_not_text(path)
    if reason:
      self.skipped[name] = reason
    elif path.stat().st_size:
      yield rows.Document(name, 0, lambda: _file_pieces(path))


def find(text_input: str) -> dict[str, pathlib.Path]:
  """Returns name to path of the files that `--data.input` means.

  Raises:
    DataError: if there is none.
  """
  if text_input == STDLIB:
    root = pathlib.Path(sysconfig.get_paths()['stdlib'])
    found = [p for p in _walk(root, _NOT_STDLIB) if p.suffix == '.py']
  elif glob.has_magic(text_input) and not os.path.exists(text_input):
    root = _fixed_part(text_input)
    matches = map(pathlib.Path, glob.glob(text_input, recursive=True))
    found = [p for p in matches if p.is_file()]
  elif os.path.isdir(text_input):
    root = pathlib.Path(text_input)
    found = list(_walk(root, frozenset()))
  elif os.path.isfile(text_input):
    root = pathlib.Path(text_input).parent
    found = [pathlib.Path(text_input)]
  else:
    raise errors.DataError(
      f'--data.input={text_input} does not exist; give a folder, a file, a '
      f"glob or '{STDLIB}'."
    )
  if not found:
    raise errors.DataError(
      f'--data.input={text_input} matches no file; give a folder, a file, a '
      f"glob or '{STDLIB}'."
    )
  return dict(sorted((p.relative_to(root).as_posix(), p) for p in found))


def exists(text_input: str) -> bool:
  """Whether `find` finds anything."""
  return os.path.exists(text_input) or bool(
    glob.glob(text_input, recursive=True)
  )


def _walk(root: pathlib.Path, left_out: frozenset[str]):
  """Yields the files under `root` that are not hidden."""
  for folder, folders, names in os.walk(root):
    folders[:] = [f for f in folders if f[0] != '.' and f not in left_out]
    for name in names:
      path = pathlib.Path(folder, name)
      if name[0] != '.' and path.is_file():
        yield path


def _fixed_part(pattern: str) -> pathlib.Path:
  """The folder before the first part of a glob that has a wildcard."""
  parts = pathlib.Path(pattern).parts
  magic = next(i for i, part in enumerate(parts) if glob.has_magic(part))
  return pathlib.Path(*parts[:magic])


def _why_not_text(path: pathlib.Path) -> str | None:
  decoder = codecs.getincrementaldecoder('utf-8')()
  with open(path, 'rb') as f:
    if b'\0' in f.read(_SNIFF):
      return 'binary'
    f.seek(0)
    try:
      while block := f.read(_BLOCK):
        decoder.decode(block)
      decoder.decode(b'', True)
    except UnicodeDecodeError:
      return 'not UTF-8'
  return None


def _file_pieces(path: pathlib.Path) -> Iterator[str]:
  with open(path, encoding='utf-8', newline='') as f:
    yield from rows.pieces(f)


def _read_jsonl(
  name: str, path: pathlib.Path, how: rows.Rows
) -> Iterator[rows.Document]:
  with open(path, 'rb') as file:
    lines = _zst_lines(file, path) if name.endswith('.zst') else file
    for number, line in enumerate(lines, 1):
      if line.strip():
        where = f'{path} line {number}'
        yield from how.document(name, number, _row(line, where, how), where)


def _zst_lines(file: BinaryIO, path: pathlib.Path) -> Iterator[bytes]:
  """Yields lines; unlike the library's reader it notices a cut file."""
  frame, rest = None, b''
  try:
    while block := file.read(_BLOCK):
      while block:
        frame = frame or zstandard.ZstdDecompressor().decompressobj()
        *lines, rest = (rest + frame.decompress(block)).split(b'\n')
        yield from lines
        block = frame.unused_data
        frame = None if frame.eof else frame
    if frame:
      raise zstandard.ZstdError('it ends within a frame')
  except zstandard.ZstdError as error:
    raise errors.DataError(
      f'{path} is not a whole zstd file: {error}.'
    ) from error
  yield rest


def _row(line: bytes, where: str, how: rows.Rows) -> dict[str, Any]:
  try:
    content = json.loads(line.decode())
  except UnicodeDecodeError as error:
    raise errors.DataError(f'{where} is not UTF-8: {error.reason}.') from error
  except (json.JSONDecodeError, RecursionError) as error:
    raise errors.DataError(f'{where} is not JSON: {error}.') from error
  if not isinstance(content, dict):
    raise errors.DataError(f'{where} is not a JSON object.')
  if how.field(content) is None:
    raise errors.DataError(
      f'{where} has no field {how.text_field!r}; name one of its fields with '
      f'--data.text_field: {", ".join(content) or "it has none"}.'
    )
  return content


def _read_parquet(
  name: str, path: pathlib.Path, how: rows.Rows
) -> Iterator[rows.Document]:
  try:
    import pyarrow
    import pyarrow.parquet
  except ImportError as error:
    raise errors.DataError(
      f'{path}: reading .parquet needs pyarrow; install it with '
      '`pip install pyarrow`.'
    ) from error
  try:
    with pyarrow.parquet.ParquetFile(path) as file:
      columns = file.schema_arrow.names
      if not set(columns) & set(how.fields):
        raise errors.DataError(
          f'{path} has no column {how.text_field!r}; name one of its columns '
          f'with --data.text_field: {", ".join(columns)}.'
        )
      wanted = [c for c in columns if c in (*how.fields, rows.TOOLS)]
      number = 0  # From 1, as lines: 0 is a whole file.
      for batch in file.iter_batches(batch_size=256, columns=wanted):
        for row in batch.to_pylist():
          number += 1
          yield from how.document(name, number, row, f'{path} row {number}')
  except (pyarrow.ArrowInvalid, OSError) as error:
    raise errors.DataError(
      f'{path} is not a readable parquet file: {error}.'
    ) from error
