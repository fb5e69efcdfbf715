# SPDX-License-Identifier: Apache-2.0
"""Text in, a folder of bundled shards with a manifest out, or nothing at all.

All is written into `OUTPUT.partial` and renamed at the end, so a folder that
exists is whole, whatever happened while it was made. Three passes: units of the
input are encoded (`units`), documents are given their places (`layout`), shards
are written (`bundle`). What is done survives; the same call goes on after it.
"""

import functools
import hashlib
import os
import pathlib
import shutil
from collections.abc import Callable, Sequence

from pipelines import chat, errors, store
from pipelines import tokenizer as tokenizer_lib
from pipelines.prepare import (
  contamination,
  finish,
  split,
  tasks,
  tokenize,
  units,
)
from pipelines.prepare import engine as engine_lib
from pipelines.prepare import output as output_lib
from pipelines.prepare.input import read
from pipelines.shards import manifest

_TRAINED = 'trained'  # Folder of the tokenizer that was trained.

Progress = Callable[[int, int], None]


def prepare(
  input: str,
  output: str | os.PathLike[str],
  *,
  text_field: str = 'text',
  tokenizer: str = 'bytes',
  train_tokenizer: int = 0,
  val_fraction: float = 0.02,
  val_tokens: int = 0,
  record_tokens: int = 32_768,
  shard_tokens: int = 2**28,
  window_tokens: int = 0,
  bad_rows: float = 0.0,
  dedup: bool = True,
  decontaminate: Sequence[str] = (),
  trim: bool = False,
  engine: engine_lib.Name = 'auto',
  workers: int = 1,
  part: tuple[int, int] | None = None,
  progress: Progress | None = None,
) -> manifest.Manifest | None:
  """Writes shards of `input`, or finds those that the same call once wrote.

  `input` is a folder, a .txt, .jsonl, .json or .parquet file, a glob, a URL of
  these, or 'stdlib'. `output` must not exist, be empty, or come from the same
  settings, in which case nothing is written. A conversation of at most
  `window_tokens` (0: `record_tokens`) crosses no multiple of them. `part` does
  only one part (from 0) of so many; without it, all that is left is done.
  `progress` is called with the documents and tokens read so far. The other
  arguments are the flags `--data.NAME`.

  Returns:
    What the folder holds; None, when a part is done.

  Raises:
    DataError: exit code 2 for wrong input or settings, 3 for damaged shards
      and for an output that cannot be written.
  """
  settings = manifest.Settings(
    input=input,
    text_field=text_field,
    tokenizer=tokenizer,
    train_tokenizer=train_tokenizer,
    val_fraction=float(val_fraction),
    record_tokens=record_tokens,
    shard_tokens=shard_tokens,
    window_tokens=window_tokens,
    val_tokens=val_tokens,
    bad_rows=float(bad_rows),
    dedup=dedup,
    decontaminate=tuple(decontaminate),
    trim=trim,
  )
  call = functools.partial(_Call, settings, engine, workers, part, progress)
  if store.is_url(output):
    return _upload(str(output), call)
  return _here(pathlib.Path(os.path.abspath(output)), call)


def _upload(
  url: str, call: 'functools.partial[_Call]'
) -> manifest.Manifest | None:
  """Makes the folder here and copies it; a manifest there says it is whole."""
  if part := call.args[3]:
    raise errors.DataError(
      f'--data.part={part[0]}/{part[1]}: parts meet in a folder, which '
      f'--output={url} is not; give one that all machines see.'
    )
  found = output_lib.existing_there(url, call.args[0])
  if found:
    return found
  folder = output_lib.staging(url)
  result = _here(folder, call)
  store.upload(folder, url, manifest.FILE_NAME)
  shutil.rmtree(folder)
  return result


def _here(
  output: pathlib.Path, call: 'functools.partial[_Call]'
) -> manifest.Manifest | None:
  settings, part = call.args[0], call.args[3]
  if (output / manifest.FILE_NAME).exists():
    return output_lib.existing(output, settings)
  output_lib.check(output, settings.input)
  return _make(output, call(), part)


def _make(
  output: pathlib.Path, call: '_Call', part: tuple[int, int] | None
) -> manifest.Manifest | None:
  """Makes the folder, or does a part of the work."""
  with output_lib.partial(output, part) as folder:
    result = _finished(folder, call.settings) or call.write(folder)
    if result is None:
      return None
    if (output / manifest.FILE_NAME).exists():
      # Another process was faster; its folder is as good if it agrees.
      shutil.rmtree(folder)
      return output_lib.existing(output, call.settings)
    folder.rename(output)
  return result


def _finished(
  folder: pathlib.Path, settings: manifest.Settings
) -> manifest.Manifest | None:
  """What a call left that was killed when all was done but the renaming."""
  try:
    result = output_lib.existing(folder, settings)
  except errors.DataError:
    return None
  output_lib.tidy(folder)
  return result


class _Call:
  """One call of `prepare`."""

  def __init__(
    self,
    settings: manifest.Settings,
    engine: engine_lib.Name,
    workers: int,
    part: tuple[int, int] | None,
    progress: Progress | None,
  ):
    self.settings, self._workers, self._part = settings, workers, part
    self._engine, self._progress = engine, progress
    self._counts = (0, 0)
    named = None
    if not settings.train_tokenizer:
      named = tokenizer_lib.load(settings.tokenizer)
      engine_lib.choose(named, engine)  # Or refuses, before there is work.
    elif part:
      raise errors.DataError(
        f'--data.part: each part would train a tokenizer; train one first with '
        f'--data.train_tokenizer={settings.train_tokenizer} on some of the '
        'text, and name its folder with --data.tokenizer.'
      )
    template = (lambda: named.template) if named else chat.none
    self._tokenizer = named
    self._source = read.Source(
      settings.input,
      settings.text_field,
      template,
      skip_bad=settings.bad_rows > 0,
    )

  def write(self, folder: pathlib.Path) -> manifest.Manifest | None:
    """Does what is left to do in a folder, or a part of it."""
    settings, source = self.settings, self._source
    (folder / units.FOLDER).mkdir(exist_ok=True)
    held_out = split.choose(source.documents(), settings.val_fraction)
    if not source.used:
      raise errors.DataError(_no_text(settings.input, source.skipped))
    self._tokenizer = self._tokenizer or _trained(
      folder, source, held_out, settings.train_tokenizer
    )
    job = self._job(held_out)
    found = [
      (unit, units.name(unit, job))
      for unit in units.divide(source.files, source.describes)
    ]
    if self._part:
      first, step = self._part
      self._encode(folder, found[first::step], job)
      return None
    output_lib.clean(folder, {name for _, name in found})
    self._encode(folder, found, job)
    reports = [units.report(folder, name) for _, name in found]
    self._check_bad_rows(reports)
    return finish.write(
      folder, found, reports, job, settings, source, self._workers
    )

  def _job(self, held_out: split.HeldOut) -> units.Job:
    settings = self.settings
    return units.Job(
      text_field=settings.text_field,
      tokenizer=self._tokenizer,
      held_out=held_out,
      dtype='uint16' if self._tokenizer.vocab_size <= 2**16 else 'uint32',
      skip_bad=settings.bad_rows > 0,
      trim_tokens=settings.window if settings.trim else 0,
      window_tokens=settings.window,
      engine=self._engine,
      contaminated=contamination.Grams.of(settings.decontaminate)
      if settings.decontaminate
      else None,
    )

  def _add(self, documents: int, tokens: int) -> None:
    self._counts = self._counts[0] + documents, self._counts[1] + tokens
    if self._progress:
      self._progress(*self._counts)

  def _encode(self, folder: pathlib.Path, found, job: units.Job) -> None:
    """Makes the units that are not there; large ones first would not help."""
    names = dict(found)
    todo = []
    for unit, name in found:
      done = units.report(folder, name)
      if done:
        self._add(done.documents, done.tokens)
      else:
        todo.append(unit)
    alone = self._workers == 1 or len(todo) < 2
    common = (job, folder, self._add) if alone else (job, folder)
    for unit in tasks.run(units.make, todo, *common, workers=self._workers):
      if not alone:
        done = units.report(folder, names[unit])
        self._add(done.documents, done.tokens)

  def _check_bad_rows(self, reports: Sequence[units.Report]) -> None:
    bad, count = sum(r.bad for r in reports), sum(r.rows for r in reports)
    if bad > self.settings.bad_rows * count:
      # A unit of before this was written down does not say it.
      named = (r.first_bad for r in reports if r.first_bad)
      first = next(named, 'not known')
      raise errors.DataError(
        f'{bad} of {count} rows are unusable, more than --data.bad_rows='
        f'{self.settings.bad_rows:g} of them; the first is {first}.'
      )


def _trained(
  folder: pathlib.Path, source: read.Source, held_out: split.HeldOut, size: int
) -> tokenizer_lib.Tokenizer:
  """Trains a tokenizer, unless a call that was interrupted has."""
  kept = folder / _TRAINED
  versions = [file.version for file in source.files.values()]
  parts = [source.sha256, source.rows.text_field, versions, held_out, size]
  key = hashlib.sha256(repr(parts).encode()).hexdigest()
  done = tasks.marked(kept / 'done.json')
  path = kept / tokenizer_lib.FILE_NAME
  if done == {'key': key} and path.exists():
    return tokenizer_lib.from_json(path.read_bytes(), f'bpe-{size}')
  trained = tokenize.train_tokenizer(source, held_out, size)
  kept.mkdir(exist_ok=True)
  trained.save(kept)
  tasks.mark(kept / 'done.json', {'key': key})
  return trained


def _no_text(text_input: str, skipped: dict[str, str]) -> str:
  message = f'--data.input={text_input} holds no text'
  if skipped:
    name, reason = next(iter(skipped.items()))
    message += (
      f': {len(skipped)} parts were left out, the first {name} ({reason})'
    )
  return message + '.'
