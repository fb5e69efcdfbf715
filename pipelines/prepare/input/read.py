# SPDX-License-Identifier: Apache-2.0
"""Finds the files of `--data.input` and turns them into documents.

A text file is one document; each line of a .jsonl and each row of a .parquet
is one. Documents come in a fixed order and in pieces, so that neither a large
file nor a large corpus has to fit into memory.
"""

import codecs
import functools
import glob
import hashlib
import json
import os
import pathlib
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping

from pipelines import chat, errors, store
from pipelines.prepare.input import parquet, rows, stream

STDLIB = 'stdlib'

# Distributions differ in these, so leaving them out keeps the text alike.
_NOT_STDLIB = frozenset({
    'dist-packages', 'idle_test', 'site-packages', 'test', 'tests',
    '__pycache__',
})  # fmt: skip
# What describes a data set in its own folder, beside files of rows.
_DESCRIBES = frozenset({'README.md', 'dataset_infos.json', 'dataset_info.json'})
_ROWS = ('.jsonl', '.jsonl.gz', '.jsonl.zst', '.parquet')
_MAYBE_ROWS = ('.json', '.json.gz', '.json.zst')
_SNIFF = 2**13  # Bytes in which a NUL makes a file binary.


class Source:
  """The files behind `--data.input`, or a part of them.

  Attributes:
    files: name to file, sorted by name.
    skipped: name to reason, of files and of rows ('FILE:LINE'); grows while
      `documents` runs.
    used: names of files that gave text; grows likewise.
    rows: how rows become documents, and how many were bad.
  """

  def __init__(
    self,
    text_input: str,
    text_field: str,
    template: Callable[[], chat.Template] = chat.none,
    *,
    files: Mapping[str, store.File] | None = None,
    row_groups: range | None = None,
    skip_bad: bool = False,
    trim: rows.Trim | None = None,
    folder: pathlib.Path | None = None,
  ):
    """Finds the files, unless they are given.

    Args:
      text_input: `--data.input`.
      text_field: `--data.text_field`.
      template: gives what writes conversations; called at the first of them.
      files: a part of what `find` gives.
      row_groups: those to read, if there is one file and it has such.
      skip_bad: counts rows that cannot be used, rather than raising.
      trim: see `rows.Rows`.
      folder: where copies of remote files go for a while.
    """
    self.input = text_input
    self.files = find(text_input) if files is None else dict(files)
    self.used: dict[str, None] = {}
    self.rows = rows.Rows(text_field, template, skip_bad=skip_bad, trim=trim)
    self.skipped = self.rows.skipped
    self._row_groups = row_groups
    self._folder = folder or pathlib.Path(tempfile.gettempdir())
    self._whole = files is None

  @property
  def sha256(self) -> str:
    """Hash of names and sizes, to notice that the input is another one."""
    lines = [f'{name}\0{file.size}\n' for name, file in self.files.items()]
    return hashlib.sha256(''.join(lines).encode()).hexdigest()

  @functools.cached_property
  def describes(self) -> list[str]:
    """Files of a whole input that describe the rows beside them."""
    found = [name for name in self.files if name in _DESCRIBES]
    return found if found and self._whole and self._has_rows() else []

  def documents(self) -> Iterator[rows.Document]:
    """Yields all documents that are not empty, in a fixed order."""
    for name, file in self.files.items():
      if name in self.describes:
        self.skipped[name] = 'describes the data set'
        continue
      with file.local(self._folder) as path:
        for document in self._read(name, path, file.path):
          self.used[name] = None
          yield document

  def _has_rows(self) -> bool:
    if any(name.endswith((*_ROWS, *_MAYBE_ROWS[1:])) for name in self.files):
      return True
    for name, file in self.files.items():
      if name.endswith(_MAYBE_ROWS) and name not in _DESCRIBES:
        with file.local(self._folder) as path:
          if _holds_rows(path, file.path, self.rows):
            return True
    return False

  def _read(
    self, name: str, path: pathlib.Path, where: str
  ) -> Iterator[rows.Document]:
    if name.endswith('.parquet'):
      return parquet.documents(name, path, where, self.rows, self._row_groups)
    if name.endswith(_ROWS) or (
      name.endswith(_MAYBE_ROWS) and _holds_rows(path, where, self.rows)
    ):
      return _read_jsonl(name, path, where, self.rows)
    return self._read_text(name, path, where)

  def _read_text(
    self, name: str, path: pathlib.Path, where: str
  ) -> Iterator[rows.Document]:
    reason = _why_not_text(path, where)
    if reason:
      self.skipped[name] = reason
    elif path.stat().st_size:
      yield rows.Document(name, 0, lambda: _file_pieces(path, where))


def find(text_input: str) -> dict[str, store.File]:
  """Returns name to file of what `--data.input` means, sorted by name.

  Raises:
    DataError: if there is none.
  """
  if store.is_url(text_input):
    found = store.find(text_input)
    found = {n: f for n, f in found.items() if not _is_hidden(n)}
  else:
    found = _find_here(text_input)
  if not found:
    raise errors.DataError(
      f'--data.input={text_input} matches no file; give a folder, a file, a '
      f"glob or '{STDLIB}'."
    )
  return dict(sorted(found.items()))


def _find_here(text_input: str) -> dict[str, store.File]:
  if text_input == STDLIB:
    root = pathlib.Path(sysconfig.get_paths()['stdlib'])
    paths = [p for p in _walk(root, _NOT_STDLIB) if p.suffix == '.py']
  elif glob.has_magic(text_input) and not os.path.exists(text_input):
    root = _fixed_part(text_input)
    matches = map(pathlib.Path, glob.glob(text_input, recursive=True))
    paths = [p for p in matches if p.is_file()]
  elif os.path.isdir(text_input):
    root = pathlib.Path(text_input)
    paths = list(_walk(root, frozenset()))
  elif os.path.isfile(text_input):
    root = pathlib.Path(text_input).parent
    paths = [pathlib.Path(text_input)]
  else:
    raise errors.DataError(
      f'--data.input={text_input} does not exist; give a folder, a file, a '
      f"glob or '{STDLIB}'."
    )
  return {_name(p, root): store.local_file(p) for p in paths}


def _name(path: pathlib.Path, root: pathlib.Path) -> str:
  name = path.relative_to(root).as_posix()
  try:
    name.encode()
  except UnicodeEncodeError as error:
    raise errors.DataError(
      f'The name of {str(path)!a} is not UTF-8; rename the file.'
    ) from error
  return name


def exists(text_input: str) -> bool:
  """Whether `find` finds anything on this machine."""
  return os.path.exists(text_input) or bool(
    glob.glob(text_input, recursive=True)
  )


def _is_hidden(name: str) -> bool:
  return any(part.startswith('.') for part in name.split('/'))


def _walk(
  root: pathlib.Path, left_out: frozenset[str], above: tuple[str, ...] = ()
) -> Iterator[pathlib.Path]:
  """Yields the files under `root` that are not hidden, behind links too.

  `above` are the folders on the way, by which links that lead back are seen.
  """
  real = os.path.realpath(root)
  if real in above:
    return
  try:
    with os.scandir(root) as entries:
      found = sorted(entries, key=lambda entry: entry.name)
  except OSError as error:
    raise errors.DataError(
      f'{root} cannot be read ({error.strerror}); make it readable, or give a '
      'glob without it.'
    ) from error
  for entry in found:
    if entry.name[0] == '.' or (entry.name in left_out and entry.is_dir()):
      continue
    if entry.is_dir():
      yield from _walk(pathlib.Path(entry.path), left_out, (*above, real))
    elif entry.is_file():
      yield pathlib.Path(entry.path)


def _fixed_part(pattern: str) -> pathlib.Path:
  """The folder before the first part of a glob that has a wildcard."""
  parts = pathlib.Path(pattern).parts
  magic = next(i for i, part in enumerate(parts) if glob.has_magic(part))
  return pathlib.Path(*parts[:magic])


def _why_not_text(path: pathlib.Path, where: str) -> str | None:
  decoder = codecs.getincrementaldecoder('utf-8')()
  sniffed = b''
  try:
    for block in stream.blocks(path, where):
      if len(sniffed) < _SNIFF:
        sniffed = (sniffed + block)[:_SNIFF]
        if b'\0' in sniffed:
          return 'binary'
      decoder.decode(block)
    decoder.decode(b'', True)
  except UnicodeDecodeError:
    return 'not UTF-8'
  return None


def _file_pieces(path: pathlib.Path, where: str) -> Iterator[str]:
  decoder = codecs.getincrementaldecoder('utf-8')()
  texts = (decoder.decode(block) for block in stream.blocks(path, where))
  yield from rows.pieces(texts)


def _holds_rows(path: pathlib.Path, where: str, how: rows.Rows) -> bool:
  """Whether a .json has an object on each line, rather than being one text."""
  seen = 0
  for line in stream.lines(path, where):
    if line is None or not line.strip():
      continue
    try:
      content = json.loads(line)
    except (ValueError, RecursionError):
      return False
    if not isinstance(content, dict):
      return False
    seen += 1
    # An object alone is a text, unless it is a row by what it has.
    if seen == 2 or how.field(content) is not None:
      return True
  return False


def _read_jsonl(
  name: str, path: pathlib.Path, where: str, how: rows.Rows
) -> Iterator[rows.Document]:
  for number, line in enumerate(stream.lines(path, where), 1):
    if line is None or line.strip():
      place = f'{where} line {number}'
      get = functools.partial(_row, line, place, how)
      yield from how.read(name, number, get, place)


def _row(line: bytes | None, where: str, how: rows.Rows) -> rows.Row:
  if line is None:
    raise errors.DataError(f'{where} {stream.too_long()}.')
  try:
    content = json.loads(line.decode())
  except UnicodeDecodeError as error:
    raise errors.DataError(f'{where} is not UTF-8: {error.reason}.') from error
  # ValueError: a number of more digits than Python takes, too.
  except (ValueError, RecursionError) as error:
    raise errors.DataError(f'{where} is not JSON: {error}.') from error
  if not isinstance(content, dict):
    raise errors.DataError(f'{where} is not a JSON object.')
  if how.field(content) is None:
    raise errors.DataError(
      f'{where} has no field {how.text_field!r}; name one of its fields with '
      f'--data.text_field: {", ".join(content) or "it has none"}.'
    )
  return content
