# SPDX-License-Identifier: Apache-2.0
"""Text in, a folder of bundled shards with a manifest out, or nothing at all.

All is written into `OUTPUT.partial` and renamed at the end, so a folder that
exists is whole, whatever happened while it was made.
"""

import contextlib
import dataclasses
import fcntl
import functools
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import TextIO

from pipelines import chat, errors, manifest
from pipelines import tokenizer as tokenizer_lib
from pipelines.prepare import bundle, read, split, tokenize

_LISTED = 1000  # Names kept in the manifest, which must stay small.
_LOCK = 'lock'


def prepare(
  input: str,
  output: str | os.PathLike[str],
  *,
  text_field: str = 'text',
  tokenizer: str = 'bytes',
  train_tokenizer: int = 0,
  val_fraction: float = 0.02,
  record_tokens: int = 32_768,
  shard_tokens: int = 2**28,
  window_tokens: int = 0,
  progress: Callable[[int, int], None] | None = None,
) -> manifest.Manifest:
  """Writes shards of `input`, or finds those that the same call once wrote.

  Args:
    input: a folder, a .txt, .jsonl, .jsonl.zst or .parquet file, a glob, or
      'stdlib'.
    output: folder to make; it must not exist, be empty, or come from the same
      settings, in which case nothing is written.
    text_field: field of .jsonl and column of .parquet with the text.
    tokenizer: 'bytes' or the path of a `tokenizer.json`.
    train_tokenizer: size of a byte-level BPE to train instead; 0: none.
    val_fraction: share of documents held out; of a single one, its tail.
    record_tokens: tokens in a record.
    shard_tokens: tokens of a file, about.
    window_tokens: divides `record_tokens`; a conversation of at most as many
      tokens does not cross a multiple of them; 0: it may.
    progress: called with the documents and tokens written so far.

  Raises:
    DataError: exit code 2 for wrong input or settings, 3 for damaged shards
      and for an output that cannot be written.
  """
  output = pathlib.Path(os.path.abspath(output))
  settings = manifest.Settings(
    input=input,
    text_field=text_field,
    tokenizer=tokenizer,
    train_tokenizer=train_tokenizer,
    val_fraction=float(val_fraction),
    record_tokens=record_tokens,
    shard_tokens=shard_tokens,
    window_tokens=window_tokens,
  )
  if (output / manifest.FILE_NAME).exists():
    return _existing(output, settings)
  _check_output(output, input)
  named = None if train_tokenizer else tokenizer_lib.load(tokenizer)
  template = (lambda: named.template) if named else chat.none
  source = read.Source(input, text_field, template)
  with _partial(output) as folder:
    result = _write(folder, source, named, settings, progress)
    if (output / manifest.FILE_NAME).exists():
      # Another process was faster; its folder is as good if it agrees.
      shutil.rmtree(folder)
      return _existing(output, settings)
    folder.rename(output)
  return result


def _existing(
  output: pathlib.Path, settings: manifest.Settings
) -> manifest.Manifest:
  """Returns the manifest of a finished folder if it is what was asked for."""
  found = manifest.load(output)
  wanted, had = dataclasses.asdict(settings), dataclasses.asdict(found.settings)
  # Other windows than planned only cut some conversations, or none.
  del wanted['window_tokens']
  differing = [k for k in wanted if wanted[k] != had[k]]
  way_out = f'choose another --output or remove {output}'
  if differing:
    listed = ', '.join(
      f'--data.{k}={wanted[k]} (there: {had[k]})' for k in differing
    )
    raise errors.DataError(
      f'{output} was prepared with other settings: {listed}; {way_out}.'
    )
  # A run may go on where its text is gone, but not on text that has changed.
  # Another Python's library counts as gone: an upgrade must not stop a run.
  if settings.input != read.STDLIB and read.exists(settings.input):
    source = read.Source(settings.input, settings.text_field)
    if source.sha256 != found.input_sha256:
      raise errors.DataError(
        f'{output} was prepared from other files than --data.input='
        f'{settings.input} has now; {way_out}, or use it as it is with '
        f'--data.dir={output}.'
      )
  if not settings.train_tokenizer and os.path.exists(settings.tokenizer):
    named = tokenizer_lib.load(settings.tokenizer)
    found.check_tokenizer(named)
    found.check_template(named)
  return found


def _check_output(output: pathlib.Path, text_input: str) -> None:
  if output.is_dir() and any(output.iterdir()):
    raise errors.DataError(
      f'--output={output} holds other files and no {manifest.FILE_NAME}; '
      'choose an empty or new folder.'
    )
  if output.exists() and not output.is_dir():
    raise errors.DataError(f'--output={output} is a file; choose a folder.')
  folder = pathlib.Path(os.path.abspath(text_input))
  if folder.is_dir() and output.is_relative_to(folder):
    raise errors.DataError(
      f'--output={output} lies inside --data.input={text_input} and would '
      'become part of it; choose a folder outside.'
    )


@contextlib.contextmanager
def _partial(output: pathlib.Path) -> Iterator[pathlib.Path]:
  """Makes an empty `OUTPUT.partial` for this process alone."""
  folder = output.with_name(output.name + '.partial')
  try:
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / _LOCK, 'w') as lock:
      _lock(lock, folder)
      try:
        # What a killed process left there.
        for path in folder.iterdir():
          if path.name != _LOCK:
            path.unlink()
        yield folder
      except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
  except OSError as error:
    raise errors.DataError(
      f'Preparing --output={output} failed ({error.strerror}: '
      f'{error.filename or folder}); make that place readable, writable and '
      'large enough, or choose another.',
      errors.UNUSABLE,
    ) from error


def _lock(lock: TextIO, folder: pathlib.Path) -> None:
  try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError as error:
    raise errors.DataError(
      f'{folder} is in use by another process that prepares the same data; '
      'wait for it to end.'
    ) from error


def _write(
  folder: pathlib.Path,
  source: read.Source,
  tokenizer: tokenizer_lib.Tokenizer | None,
  settings: manifest.Settings,
  progress: Callable[[int, int], None] | None,
) -> manifest.Manifest:
  """Writes shards, tokenizer (None: a trained one) and manifest."""
  held_out = split.choose(source.documents(), settings.val_fraction)
  if not source.used:
    raise errors.DataError(_no_text(source))
  tokenizer = tokenizer or tokenize.train_tokenizer(
    source, held_out, settings.train_tokenizer
  )
  dtype = 'uint16' if tokenizer.vocab_size <= 2**16 else 'uint32'
  new_writer = functools.partial(
    bundle.SplitWriter,
    folder,
    dtype=dtype,
    record_tokens=settings.record_tokens,
    shard_tokens=settings.shard_tokens,
    window_tokens=settings.window_tokens or settings.record_tokens,
    pad_id=tokenizer.pad_id,
  )
  writers = {name: new_writer(name) for name in (split.TRAIN, split.VAL)}
  documents = tokens = 0
  for piece in tokenize.encode(source, held_out, tokenizer):
    writers[piece.split].add(piece)
    documents += piece.begins
    tokens += len(piece.ids)
    if progress:
      progress(documents, tokens)
  splits = {name: writer.close() for name, writer in writers.items()}
  tokenizer.save(folder)
  masked = any(s and s.counted_tokens is not None for s in splits.values())
  result = manifest.Manifest(
    format_version=manifest.DOCUMENTED,
    settings=settings
    if masked
    else dataclasses.replace(settings, window_tokens=None),
    input_sha256=source.sha256,
    num_sources=len(source.used),
    sources=tuple(list(source.used)[:_LISTED]),
    num_skipped=len(source.skipped),
    skipped=dict(list(source.skipped.items())[:_LISTED]),
    tokenizer=tokenizer.name,
    tokenizer_sha256=tokenizer.sha256,
    vocab_size=tokenizer.vocab_size,
    pad_id=tokenizer.pad_id,
    bos_id=tokenizer.bos_id,
    eos_id=tokenizer.eos_id,
    dtype=dtype,
    record_tokens=settings.record_tokens,
    splits={name: s for name, s in splits.items() if s is not None},
    template_sha256=tokenizer.template.sha256 if masked else None,
    files=manifest.write_files(source.files, folder),
  )
  manifest.write(result, folder)
  (folder / _LOCK).unlink()
  return result


def _no_text(source: read.Source) -> str:
  message = f'--data.input={source.input} holds no text'
  if source.skipped:
    name, reason = next(iter(source.skipped.items()))
    message += (
      f': {len(source.skipped)} parts were left out, the first {name} '
      f'({reason})'
    )
  return message + '.'
