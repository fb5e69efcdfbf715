# SPDX-License-Identifier: Apache-2.0
"""How much of each source each phase has read."""

from collections.abc import Iterator
from typing import Any

from zaya_jax.data.ledger import story


def by_phase(told: story.Story) -> Iterator[dict[str, Any]]:
  """Yields a row for each phase and source that it read.

  Returns:
    phase, None without a recipe; source; tokens, of the rows that were trained
    on, full or not; rows, of these; refused and left_out, other rows; epochs,
    of the source in the whole run until the phase ended.
  """
  names = [source.name for source in told.reads.sources]
  phases: dict[str, list[story.Line]] = {}
  for line in told.lines:
    phases.setdefault(line.phase, []).append(line)
  for phase, lines in phases.items():
    epochs = told.reads.order.epochs(lines[-1].rows[1])
    for i, name in enumerate(names):
      rows, tokens = dict.fromkeys(('trained', 'refused', 'left_out'), 0), 0
      for line in lines:
        count = line.sources[i] if i < len(line.sources) else 0
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
