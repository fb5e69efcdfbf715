# SPDX-License-Identifier: Apache-2.0
"""From units that are done to the folder of shards and its manifest."""

import dataclasses
import pathlib
import zlib
from collections.abc import Sequence
from concurrent import futures

from pipelines import errors
from pipelines.prepare import bundle, layout, output, split, tasks, units
from pipelines.prepare.input import read
from pipelines.shards import manifest

_ZLIB = 2**24  # Bytes of held-out text that zlib is measured on; it is slow.


def write(
  folder: pathlib.Path,
  found: Sequence[tuple[units.Unit, str]],
  reports: Sequence[units.Report],
  job: units.Job,
  settings: manifest.Settings,
  source: read.Source,
  workers: int,
) -> manifest.Manifest:
  """Lays documents out, writes shards and manifest, and tidies up.

  Args:
    folder: holds the units, and becomes the result.
    found: units and their names.
    reports: of each.
    job: what the units have in common.
    settings: what was asked for.
    source: the whole input.
    workers: processes.

  Raises:
    DataError: if nothing is left to train on, or a shard cannot be written.
  """
  rules = layout.Rules(
    window_tokens=settings.window,
    dedup=settings.dedup,
    val_tokens=settings.val_tokens,
    one=job.held_out.tail_from is not None,
  )
  sizes = settings.record_tokens, settings.shard_tokens
  work = output.work(folder, [*(name for _, name in found), rules, sizes])
  sides, left_out = layout.write(folder, found, work, rules)
  _check_pairs(reports, settings)
  if not sides[split.TRAIN].tokens:
    reasons = [f'{n} {why}' for why, n in left_out.items() if n]
    reasons += [
      f'{name}: {why}' for r in reports for name, why in r.skipped.items()
    ][:1]
    raise errors.DataError(
      f'--data.input={settings.input} has no text to train on: all that is '
      f'not held out is left out ({", ".join(reasons)}).'
    )
  shards = bundle.Shards(
    folder=folder,
    layout=work,
    units=tuple(name for _, name in found),
    dtype=job.dtype,
    record_tokens=settings.record_tokens,
    shard_tokens=settings.shard_tokens,
    pad_id=job.tokenizer.pad_id,
    tokens={name: side.tokens for name, side in sides.items() if side.tokens},
    masked=frozenset(name for name, side in sides.items() if side.masked),
  )
  splits = _splits(shards, sides, workers)
  result = _manifest(reports, job, settings, source, shards, splits, left_out)
  job.tokenizer.save(folder)
  manifest.write(result, folder)
  output.tidy(folder)
  return result


def _check_pairs(
  reports: Sequence[units.Report], settings: manifest.Settings
) -> None:
  """Refuses pairs beside other documents."""
  pairs = sum(report.pairs for report in reports)
  if 0 < pairs < sum(report.documents for report in reports):
    raise errors.DataError(
      f'--data.input={settings.input} has pairs of answers (chosen, rejected) '
      'and other rows; prepare them apart.'
    )


def _splits(
  shards: bundle.Shards, sides: dict[str, layout.Side], workers: int
) -> dict[str, manifest.Split]:
  """Writes all shards; zlib, as slow as many of them, measures beside workers.

  A process that writes shards itself has no files left for that meanwhile.
  """
  with futures.ThreadPoolExecutor(1) as beside:
    apart = workers > 1 and len(shards.tasks()) > 1
    bits = beside.submit(_zlib_bits, shards) if apart else None
    for _ in tasks.run(bundle.write, shards.tasks(), shards, workers=workers):
      pass
  measured = bits.result() if bits else _zlib_bits(shards)
  return {
    name: _split(name, sides[name], shards, measured) for name in shards.tokens
  }


def _manifest(
  reports: Sequence[units.Report],
  job: units.Job,
  settings: manifest.Settings,
  source: read.Source,
  shards: bundle.Shards,
  splits: dict[str, manifest.Split],
  left_out: dict[str, int],
) -> manifest.Manifest:
  left_out['bad rows'] = sum(r.bad for r in reports)
  left_out['contaminated'] = sum(r.contaminated for r in reports)
  skipped = {name: 'describes the data set' for name in source.describes}
  for report in reports:
    skipped |= report.skipped
  used = sorted({name for report in reports for name in report.used})
  masked = bool(shards.masked)
  return manifest.Manifest(
    format_version=manifest.DOCUMENTED,
    settings=settings
    if masked
    else dataclasses.replace(settings, window_tokens=None),
    input_sha256=source.sha256,
    num_sources=len(used),
    sources=tuple(used[: units.LISTED]),
    num_skipped=len(source.describes) + sum(r.num_skipped for r in reports),
    skipped=dict(list(skipped.items())[: units.LISTED]),
    tokenizer=job.tokenizer.name,
    tokenizer_sha256=job.tokenizer.sha256,
    vocab_size=job.tokenizer.vocab_size,
    pad_id=job.tokenizer.pad_id,
    bos_id=job.tokenizer.bos_id,
    eos_id=job.tokenizer.eos_id,
    dtype=job.dtype,
    record_tokens=settings.record_tokens,
    splits=splits,
    template_sha256=job.tokenizer.template_sha256 if masked else None,
    files=manifest.write_files(source.files, shards.folder),
    left_out={why: count for why, count in left_out.items() if count},
    pairs=any(report.pairs for report in reports),
  )


def _split(
  name: str, side: layout.Side, shards: bundle.Shards, bits: float | None
) -> manifest.Split:
  return manifest.Split(
    documents=side.documents,
    tokens=side.tokens,
    counted_tokens=side.counted if side.masked else None,
    bytes=side.bytes,
    bytes_per_token=side.bytes / side.counted,
    zlib_bits_per_byte=bits if name == split.VAL else None,
    shards=tuple(
      shards.done(name, index) for index in range(len(shards.stops(name)))
    ),
  )


def _zlib_bits(shards: bundle.Shards) -> float | None:
  """Bits that zlib needs for a byte of the held-out text, in its order."""
  if split.VAL not in shards.tokens:
    return None
  compress = zlib.compressobj(9)
  read_bytes = written = 0
  texts = units.files(shards.folder, shards.units, 'text')
  for row in layout.read(shards.layout, split.VAL):
    start, size = int(row['text']), int(row['bytes'])
    text = texts(int(row['unit']))[start : start + size]
    written += len(compress.compress(text))
    read_bytes += size
    if read_bytes >= _ZLIB:
      break
  return 8 * (written + len(compress.flush())) / read_bytes
