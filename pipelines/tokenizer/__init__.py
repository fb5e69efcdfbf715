# SPDX-License-Identifier: Apache-2.0
"""Text to token ids and back: plain bytes, or any `tokenizer.json`.

Text is only ever text: a special token that is spelled out in a document is
split like other characters, so documents cannot forge their own boundaries.
Only what a chat template has written is read with its special tokens.
"""

import pathlib

from pipelines import chat, errors
from pipelines.tokenizer import base, json_file, raw_bytes

FILE_NAME = base.FILE_NAME
Tokenizer = base.Tokenizer
from_json = json_file.from_json
train_bpe = json_file.train_bpe


def load(name_or_path: str) -> Tokenizer:
  """Loads 'bytes', a `tokenizer.json`, or the folder that holds one.

  Raises:
    DataError: if there is no such file, it is not a tokenizer, or it has
      neither a token that starts a text nor one that ends it.
  """
  if name_or_path == 'bytes':
    return raw_bytes.BYTES
  path = pathlib.Path(name_or_path)
  if path.is_dir():
    path = path / FILE_NAME
  if not path.is_file():
    raise errors.DataError(
      f'--data.tokenizer={name_or_path}: {path} is not a file; give '
      "'bytes' or the path of a tokenizer.json."
    )
  beside = chat.read_files(path.parent)
  return from_json(path.read_bytes(), name_or_path, beside)
