# SPDX-License-Identifier: Apache-2.0
"""Which text results are on: none compare with those on another.

For benchmarks that go on behind the last line of what is there.
"""

import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from zaya_jax import config as config_lib


def name(config: config_lib.Config) -> dict[str, str]:
  """What a row says of a text that is no corpus of `benchmarks.corpus`."""
  return {'text': pathlib.Path(config.data.input).name}


def of(row: Mapping[str, Any]) -> tuple[str, str, int]:
  """Which text a run has read and was scored on.

  Args:
    row: with the facts of `race_data`, or a `name`.

  Returns:
    The hashes of what is trained on and what is held out, and how many bytes of
    the latter are scored; or the name of the text and nothing else.
  """
  corpus = row.get('corpus', {})
  train, held_out = (
    corpus.get(split, {}).get('sha256', '') for split in ('train', 'held_out')
  )
  return train or row.get('text', ''), held_out, row.get('held_out_bytes', 0)


def same(
  rows: Iterable[Mapping[str, Any]], text: Mapping[str, Any], output: object
) -> None:
  """Refuses to add to results on another text, with which none compares.

  Args:
    rows: what the output has.
    text: the facts of what would be added, or its `name`.
    output: its name.

  Raises:
    SystemExit: what differs, and the way out.
  """
  for row in rows:
    if of(row) != of(text):
      raise SystemExit(
        f'--output={output} has runs on {_told(of(row))}, and these would be '
        f'on {_told(of(text))}{_other_packages(row, text)}; scores compare on '
        'the same text alone. Name another --output, and another --work or '
        '--data for its shards, or give the text of that one.'
      )


def _told(text: tuple[str, str, int]) -> str:
  train, held_out, size = text
  if not held_out:
    return train or 'no corpus'
  return f'corpus {train[:8]}, scored on {size:,} bytes of {held_out[:8]}'


def _other_packages(row: Mapping[str, Any], text: Mapping[str, Any]) -> str:
  """The packages that only one of both has, by the names of their versions."""
  there, here = (
    set(one.get('corpus', {}).get('packages', ())) for one in (row, text)
  )
  if not there or not here or there == here:
    return ''
  return (
    f' ({", ".join(sorted(there - here))} there, '
    f'{", ".join(sorted(here - there))} now)'
  )
