# SPDX-License-Identifier: Apache-2.0
"""The losses of a short training here beside those of the same one on a CPU.

Both read the same rows from the same weights. Before the first update they
differ by rounding alone; later each goes its own way, as two runs that round in
another way do, and only the level can be compared.
"""

import dataclasses
import json
import pathlib
import statistics

# Shares of the loss. bfloat16 beside float32 on a CPU: 3e-5 in the first step
# of the quick start, 8e-4 in the mean of LAST steps around step 50.
FIRST = 0.003
LEVEL = 0.02
LAST = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compared:
  """What came of it.

  Attributes:
    wrong: whether the losses are further apart than rounding can be.
    said: in words.
  """

  wrong: bool
  said: str


def read(run_dir: pathlib.Path) -> dict[int, float]:
  """The training loss by step."""
  path = run_dir / 'metrics.jsonl'
  rows = [json.loads(line) for line in path.read_text().splitlines()]
  return {r['step']: r['train/loss'] for r in rows if 'train/loss' in r}


def compare(here: dict[int, float], cpu: dict[int, float]) -> Compared:
  """Compares the first loss and the level of the last ones."""
  steps = sorted(here.keys() & cpu.keys())
  if not steps:
    return Compared(wrong=True, said='there is no loss to compare')
  first, last = steps[0], steps[-LAST:]
  level = [statistics.fmean(run[s] for s in last) for run in (here, cpu)]
  apart = [
    _apart(here[first], cpu[first]),
    _apart(*level),
  ]
  said = (
    f'loss {here[first]:.4f} in step {first} and {level[0]:.4f} in the last '
    f'{len(last)}; on a CPU {cpu[first]:.4f} and {level[1]:.4f}'
  )
  # A NaN is no more than any number.
  wrong = not (apart[0] <= FIRST and apart[1] <= LEVEL)
  return Compared(wrong=wrong, said=said)


def _apart(one: float, two: float) -> float:
  return abs(one - two) / max(abs(two), 1e-9)
