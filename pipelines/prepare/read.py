# SPDX-License-Identifier: Apache-2.0
"""Finds the files of `--data.input` and turns them into documents.

A text file is one document; each line of a .jsonl and each row of a .parquet
is one. Documents come in a fixed order and in pieces, so that neither a large
file nor a large corpus has to fit into memory.
"""

import codecs
import dataclasses
import glob
import hashlib
import io
import json
import os
import pathlib
import sysconfig
from collections.abc import Callable, Iterator
from typing import BinaryIO, TextIO

import zstandard

from pipelines import errors

STDLIB = 'stdlib'

# Distributions differ in these, so leaving them out keeps the text alike.
_NOT_STDLIB = frozenset({
    'dist-packages', 'idle_test', 'site-packages', 'test', 'tests',
    '__pycache__',
})  # fmt: skip
_PIECE = 2**20  # Characters; bounds memory, large enough to encode well.
_SNIFF = 2**13  # Bytes in which a NUL makes a file binary.


@dataclasses.dataclass(frozen=True)
class Document:
  """One text.

  Attributes:
    name: of its file, relative to the input, with forward slashes.
    index: of the line or row in the file; 0 for a whole file.
    pieces: gives the text in parts, afresh at each call.
  """

  name: str
  index: int
  pieces: Callable[[], Iterator[str]]

  @property
  def key(self) -> str:
    """Names the document, the same on every machine."""
    return f'{self.name}:{self.index}'


class Source:
  """The files behind `--data.input`.

  Attributes:
    files: name to path, sorted by name.
    skipped: name to reason; grows while `documents` runs.
    used: names of files that gave text; grows likewise.
  """

  def __init__(self, text_input: str, text_field: str):
    self.input = text_input
    self.text_field = text_field
    self.files = find(text_input)
    self.skipped: dict[str, str] = {}
    self.used: dict[str, None] = {}

  @property
  def sha256(self) -> str:
    """Hash of names and sizes, to notice that the input is another one."""
    lines = [f'{n}\0{p.stat().st_size}\n' for n, p in self.files.items()]
    return hashlib.sha256(''.join(lines).encode()).hexdigest()

  def documents(self) -> Iterator[Document]:
    """Yields all documents that are not empty, in a fixed order."""
    for name, path in self.files.items():
      for document in self._read(name, path):
        self.used[name] = None
        yield document

  def _read(self, name: str, path: pathlib.Path) -> Iterator[Document]:
    if name.endswith(('.jsonl', '.jsonl.zst')):
      return _read_jsonl(name, path, self.text_field)
    if name.endswith('.parquet'):
      return _read_parquet(name, path, self.text_field)
    return self._read_text(name, path)

  def _read_text(self, name: str, path: pathlib.Path) -> Iterator[Document]:
    reason = _why_not_text(path)
    if reason:
      self.skipped[name] = reason
    elif path.stat().st_size:
      yield Document(name, 0, lambda: _file_pieces(path))


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
      while block := f.read(_PIECE):
        decoder.decode(block)
      decoder.decode(b'', True)
    except UnicodeDecodeError:
      return 'not UTF-8'
  return None


def _file_pieces(path: pathlib.Path) -> Iterator[str]:
  with open(path, encoding='utf-8', newline='') as f:
    yield from _pieces(f)


def _pieces(stream: TextIO) -> Iterator[str]:
  """Cuts at line ends: there a tokenizer rarely joins what is on both sides."""
  rest = ''
  while block := stream.read(_PIECE):
    text = rest + block
    cut = text.rfind('\n') + 1 or len(text)
    yield text[:cut]
    rest = text[cut:]
  if rest:
    yield rest


def _text_document(name: str, index: int, text: str) -> Iterator[Document]:
  # JSON can spell half a surrogate pair, which no encoding can write.
  text = text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')
  if text:
    yield Document(name, index, lambda: _pieces(io.StringIO(text)))


def _read_jsonl(
  name: str, path: pathlib.Path, text_field: str
) -> Iterator[Document]:
  with open(path, 'rb') as file:
    lines = _zst_lines(file, path) if name.endswith('.zst') else file
    for number, line in enumerate(lines, 1):
      if line.strip():
        text = _json_text(line, f'{path} line {number}', text_field)
        yield from _text_document(name, number, text)


def _zst_lines(file: BinaryIO, path: pathlib.Path) -> Iterator[bytes]:
  """Yields lines; unlike the library's reader it notices a cut file."""
  frame, rest = None, b''
  try:
    while block := file.read(_PIECE):
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


def _json_text(line: bytes, where: str, text_field: str) -> str:
  try:
    content = json.loads(line.decode())
  except UnicodeDecodeError as error:
    raise errors.DataError(f'{where} is not UTF-8: {error.reason}.') from error
  except (json.JSONDecodeError, RecursionError) as error:
    raise errors.DataError(f'{where} is not JSON: {error}.') from error
  if not isinstance(content, dict):
    raise errors.DataError(f'{where} is not a JSON object.')
  if text_field not in content:
    raise errors.DataError(
      f'{where} has no field {text_field!r}; name one of its fields with '
      f'--data.text_field: {", ".join(content) or "it has none"}.'
    )
  if not isinstance(content[text_field], str):
    raise errors.DataError(
      f'{where}: field {text_field!r} (--data.text_field) is not a string.'
    )
  return content[text_field]


def _read_parquet(
  name: str, path: pathlib.Path, text_field: str
) -> Iterator[Document]:
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
      if text_field not in columns:
        raise errors.DataError(
          f'{path} has no column {text_field!r}; name one of its columns '
          f'with --data.text_field: {", ".join(columns)}.'
        )
      row = 0
      for batch in file.iter_batches(batch_size=256, columns=[text_field]):
        for value in batch.column(0).to_pylist():
          if not isinstance(value, str):
            raise errors.DataError(
              f'{path} row {row}: column {text_field!r} '
              '(--data.text_field) is not a string.'
            )
          yield from _text_document(name, row, value)
          row += 1
  except (pyarrow.ArrowInvalid, OSError) as error:
    raise errors.DataError(
      f'{path} is not a readable parquet file: {error}.'
    ) from error
