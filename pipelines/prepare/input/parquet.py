# SPDX-License-Identifier: Apache-2.0
"""Rows of .parquet files; needs pyarrow."""

import functools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

from pipelines import errors
from pipelines.prepare.input import pairs, rows

_BATCH = 256  # Rows in memory at once.


def row_groups(path: pathlib.Path, where: str) -> list[int]:
  """Bytes of each row group, unpacked."""
  pyarrow = _pyarrow(where)
  try:
    with pyarrow.parquet.ParquetFile(path) as file:
      groups = map(file.metadata.row_group, range(file.num_row_groups))
      return [group.total_byte_size for group in groups]
  except (pyarrow.ArrowInvalid, OSError, UnicodeDecodeError) as error:
    raise _unreadable(where, error) from error


def table(path: pathlib.Path, where: str) -> Iterator[dict[str, Any]]:
  """Yields all rows with all columns."""
  pyarrow = _pyarrow(where)
  try:
    with pyarrow.parquet.ParquetFile(path) as file:
      for batch in file.iter_batches(_BATCH):
        yield from batch.to_pylist()
  except (pyarrow.ArrowInvalid, OSError, UnicodeDecodeError) as error:
    raise _unreadable(where, error) from error


def documents(
  name: str,
  path: pathlib.Path,
  where: str,
  how: rows.Rows,
  groups: range | None = None,
) -> Iterator[rows.Document]:
  """Yields the documents of a file, or of some of its row groups.

  Args:
    name: of the file in the input.
    path: of the file, or of a copy of it.
    where: its own path or URL.
    how: makes documents of rows, which count from 1 in the whole file.
    groups: row groups to read; None: all.

  Raises:
    DataError: if it is no parquet file or has no column of text.
  """
  pyarrow = _pyarrow(where)
  try:
    with pyarrow.parquet.ParquetFile(path) as file:
      columns = file.schema_arrow.names
      known = {*how.fields, pairs.CHOSEN}
      if not set(columns) & known:
        raise errors.DataError(
          f'{where} has no column {how.text_field!r}; name one of its columns '
          f'with --data.text_field: {", ".join(columns)}.'
        )
      wanted = [c for c in columns if c in (*known, *pairs.BESIDE)]
      groups = range(file.num_row_groups) if groups is None else groups
      before = map(file.metadata.row_group, range(groups.start))
      number = sum(group.num_rows for group in before)
      for batch in file.iter_batches(_BATCH, list(groups), wanted):
        for get in _rows(batch):
          number += 1
          place = f'{where} row {number}'
          yield from how.read(
            name, number, functools.partial(get, place), place
          )
  except (pyarrow.ArrowInvalid, OSError, UnicodeDecodeError) as error:
    raise _unreadable(where, error) from error


def _rows(batch) -> Iterator[Callable[[str], rows.Row]]:
  """Yields for each row what gives it, told where it is.

  That raises a DataError, if a text of the row is not UTF-8.
  """
  try:
    found = batch.to_pylist()
  except UnicodeDecodeError:  # One of them: row by row is slower.
    for i in range(len(batch)):
      yield functools.partial(_row, batch.slice(i, 1))
    return
  for row in found:
    yield functools.partial(_given, row)


def _given(row: rows.Row, where: str) -> rows.Row:
  del where
  return row


def _row(batch, where: str) -> rows.Row:
  try:
    [row] = batch.to_pylist()
  except UnicodeDecodeError as error:
    raise errors.DataError(f'{where} is not UTF-8: {error.reason}.') from error
  return row


def _pyarrow(where: str):
  try:
    import pyarrow
    import pyarrow.parquet
  except ImportError as error:
    raise errors.DataError(
      f'{where}: reading .parquet needs pyarrow; install it with '
      '`pip install pyarrow`.'
    ) from error
  return pyarrow


def _unreadable(where: str, error: Exception) -> errors.DataError:
  return errors.DataError(f'{where} is not a readable parquet file: {error}.')
