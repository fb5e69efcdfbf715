# SPDX-License-Identifier: Apache-2.0
"""Folders of as many shards as wanted, which are links to one file."""

import hashlib
import os
import pathlib

import numpy as np
from array_record.python import array_record_module

from pipelines.shards import manifest

_RECORD, _VOCABULARY, _BOS = 32_768, 262_272, 2


def make(
  folder: pathlib.Path, records: list[np.ndarray], shards: int
) -> manifest.Manifest:
  """A folder of shards: as many links to one shard of these records."""
  folder.mkdir(parents=True)
  listed, first = [], None
  for i in range(shards):
    path = folder / f'train-{i:06d}-of-{shards:06d}.array_record'
    if i % 30_000 == 0:  # File systems limit the number of links.
      writer = array_record_module.ArrayRecordWriter(
        str(path), 'group_size:1,zstd:3'
      )
      for tokens in records:
        writer.write(tokens.astype('<u4').tobytes())
      writer.close()
      first, content = path, path.read_bytes()
    else:
      os.link(first, path)
    listed.append(
      manifest.Shard(
        name=path.name,
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        records=len(records),
      )
    )
  return _describe(folder, listed, len(records[0]))


def _describe(folder, shards, size) -> manifest.Manifest:
  tokens = size * sum(shard.records for shard in shards)
  made = manifest.Manifest(
    format_version=manifest.PLAIN,
    settings=manifest.Settings(
      input='', text_field='', tokenizer='', train_tokenizer=0,
      val_fraction=0.0, record_tokens=size, shard_tokens=size,
    ),
    input_sha256='', num_sources=1, sources=(), num_skipped=0, skipped={},
    tokenizer='', tokenizer_sha256='', vocab_size=_VOCABULARY, pad_id=0,
    bos_id=_BOS, eos_id=1, dtype='uint32', record_tokens=size,
    splits={
      'train': manifest.Split(
        documents=1, tokens=tokens, bytes=tokens, bytes_per_token=1.0,
        zlib_bits_per_byte=None, shards=tuple(shards),
      )
    },
  )  # fmt: skip
  manifest.write(made, folder)
  return made


def text(count: int) -> list[np.ndarray]:
  """Records of ids as frequent as words are, with 30 documents each."""
  random = np.random.default_rng(0)
  records = []
  for _ in range(count):
    tokens = np.minimum(random.zipf(1.2, _RECORD), _VOCABULARY - 1)
    tokens[random.integers(0, _RECORD, 30)] = _BOS
    records.append(tokens.astype(np.uint32))
  return records
