# SPDX-License-Identifier: Apache-2.0
"""How much of each source each phase has read."""

from collections.abc import Iterator, Sequence
from typing import Any

from zaya_jax.data.ledger import story, terms


def by_phase(told: story.Story) -> Iterator[dict[str, Any]]:
  """Yields a row for each phase and source that it read.

  Returns:
    phase, None without a recipe; source; tokens, of the rows that were trained
    on, full or not; rows, of these; refused and left_out, other rows; epochs,
    of the source in the whole run until the phase ended.
  """
  names = [source.name for source in told.reads.sources]
  phases: dict[str, list[tuple[story.Line, int, Sequence[int]]]] = {}
  for line in told.lines:
    for phase, stop, counts in _of_phases(line, told.reads):
      phases.setdefault(phase, []).append((line, stop, counts))
  for phase, parts in phases.items():
    epochs = told.reads.order.epochs(parts[-1][1])
    for i, name in enumerate(names):
      rows, tokens = dict.fromkeys(('trained', 'refused', 'left_out'), 0), 0
      for line, _, counts in parts:
        count = counts[i] if i < len(counts) else 0
        rows[line.outcome] += count
        tokens += count * line.seq_len * (line.outcome == 'trained')
      if any(rows.values()):
        yield {
          'phase': phase or None,
          'source': name,
          'tokens': tokens,
          'rows': rows['trained'],
          'refused': rows['refused'],
          'left_out': rows['left_out'],
          'epochs': epochs[i],
        }


def _of_phases(
  line: story.Line, reads: terms.Reads
) -> Iterator[tuple[str, int, Sequence[int]]]:
  """Yields phase, row after it and rows of each source, of parts of a line.

  One of a plain run has several where that has become phases of a recipe.
  """
  row, stop = line.rows
  if line.phase:
    yield line.phase, stop, line.sources
    return
  order = reads.order
  while row < stop:
    i, end = order.stretch(row), stop
    if i + 1 < len(order.stretches):
      end = min(stop, order.first(i + 1))
    yield reads.phases[i], end, order.counts(row, end)
    row = end


def left_over(told: story.Story) -> Iterator[dict[str, Any]]:
  """Yields what a change of the sequence length left to the next epoch.

  Returns:
    phase; source; windows and tokens of fragments that no window could have.
  """
  order, start = told.reads.order, 0
  for i, stretch in enumerate(order.stretches):
    if start > told.now:
      return
    start += stretch.rows or 0
    found: dict[int, list[int]] = {}
    for place in order.left_out(i) if i else ():
      found.setdefault(place.source, []).append(place.tokens)
    for source, tokens in found.items():
      yield {
        'phase': told.reads.phases[i],
        'source': told.reads.sources[source].name,
        'fragments': len(tokens),
        'tokens': sum(tokens),
      }
