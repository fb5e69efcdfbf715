# SPDX-License-Identifier: Apache-2.0
"""How much of a year of failures is training, by the supervisor's decisions.

  python -m benchmarks.effective_time

Simulated: 128 nodes, years of random failures, the same `decide` as
--mode=supervise. What a failure costs is assumed, and written into the result.
"""

import collections
import dataclasses
import statistics

from absl import app, flags

from benchmarks import record, simulator

_YEARS = flags.DEFINE_integer('years', 20, 'Years of each setting.')
_HOURS = flags.DEFINE_list(
  'mtbf_hours', ['2', '4', '8', '50'], 'Mean times between failures.'
)


def main(argv: list[str]) -> None:
  """Simulates each setting, prints a table and writes the result."""
  del argv
  result = record.circumstances('benchmarks.effective_time', [])
  result['mix'] = simulator.MIX
  result['settings'] = []
  print('mtbf    effective (least)   failures   save every   people called')
  for hours in map(float, _HOURS.value):
    machine = simulator.Machine(mtbf_s=3600 * hours)
    years = [
      simulator.simulate(machine, seed=seed) for seed in range(_YEARS.value)
    ]
    row = _summary(machine, years)
    result['settings'].append(row)
    print(
      f'{hours:4g} h   {row["effective"]:7.2%} ({row["effective_least"]:.2%})'
      f'   {row["failures"]:8.0f}   {machine.interval_s:8.0f} s'
      f'   {row["people_called"]:6.2f} a year'
    )
  path = record.RESULTS / 'effective_time.json'
  record.write(path, result)
  print(f'wrote {path.relative_to(record.ROOT)}')


def _summary(
  machine: simulator.Machine, years: list[simulator.Year]
) -> dict[str, object]:
  """Means over years."""
  count = len(years)
  actions = sum((year.actions for year in years), collections.Counter())
  people = sum(
    n
    for name, n in actions.items()
    if name.startswith('stop') and '75' not in name
  )
  return {
    'assumed': {
      **dataclasses.asdict(machine),
      'interval_s': round(machine.interval_s, 1),
    },
    'years': count,
    'effective': statistics.mean(year.effective for year in years),
    'effective_least': min(year.effective for year in years),
    'failures': statistics.mean(year.failures for year in years),
    'lost_hours': {
      name: round(sum(year.lost_s[name] for year in years) / count / 3600, 2)
      for name in years[0].lost_s
    },
    'actions': {name: n / count for name, n in sorted(actions.items())},
    'people_called': people / count,
    'spares_least': min(year.spares_least for year in years),
  }


if __name__ == '__main__':
  app.run(main)
