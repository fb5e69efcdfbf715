# SPDX-License-Identifier: Apache-2.0
"""How much of a year of failures is training, by the supervisor's decisions.

  python -m benchmarks.effective_time

Simulated: 128 nodes, years of random failures, the same `decide` as
--mode=supervise. What a failure costs is assumed, and written into the result;
beside it are the same years with the times that drills have measured here, of a
tiny model on one machine, and with other times to notice and to start.
"""

import collections
import dataclasses
import json
import pathlib
import statistics

from absl import app, flags

from benchmarks import record, simulator

_YEARS = flags.DEFINE_integer('years', 20, 'Years of each setting.')
_HOURS = flags.DEFINE_list(
  'mtbf_hours', ['2', '4', '8', '50'], 'Mean times between failures.'
)

# The drills that show how long a kind of failure takes.
DRILLS = {
  'gpu': ('ecc_line',),
  'node_lost': ('kill_node', 'freeze_node'),
  'rank_killed': ('kill_rank', 'segv_rank', 'abort_rank'),
  'exception': ('raise_rank', 'raise_coordinator'),
  'one_hangs': ('freeze_rank', 'hold_lock', 'freeze_loader'),
  'all_hang': ('freeze_coordinator',),
}
_DETECT_S, _RECOVER_S = (5.0, 30.0, 120.0), (30.0, 90.0, 300.0, 600.0)
_YEARS_OF_OTHERS = 2  # Of each other time.


def main(argv: list[str]) -> None:
  """Simulates each setting, prints a table and writes the result."""
  del argv
  result = record.circumstances('benchmarks.effective_time', [])
  result['mix'] = simulator.MIX
  measured, files = drill_times(sorted(record.RESULTS.glob('drills*.json')))
  result['measured'] = {
    'seconds': measured,
    'from': files,
    'assumed for': sorted(simulator.MIX.keys() - measured.keys()),
  }
  result |= {'settings': [], 'measured_settings': [], 'other_times': []}
  print('mtbf    effective (least)   failures   save every   people called')
  for hours in map(float, _HOURS.value):
    machine = simulator.Machine(mtbf_s=3600 * hours)
    result['settings'].append(_row('assumed', machine, _YEARS.value))
    here = dataclasses.replace(machine, measured=tuple(measured.items()))
    result['measured_settings'].append(_row('measured', here, _YEARS.value))
    result['other_times'] += _others(machine)
  path = record.RESULTS / 'effective_time.json'
  record.write(path, result)
  print(f'wrote {path.relative_to(record.ROOT)}')


def drill_times(
  paths: list[pathlib.Path],
) -> tuple[dict[str, float], list[str]]:
  """Seconds from a fault until training goes on, by kind, and their files."""
  found, files = collections.defaultdict(list), []
  for path in paths:
    rows = json.loads(path.read_text()).get('drills', ())
    times = [(r['fault'], r['recover_s']) for r in rows if r.get('recover_s')]
    files += [path.name] if times else []
    for kind, drills in DRILLS.items():
      found[kind] += [seconds for drill, seconds in times if drill in drills]
  medians = {k: statistics.median(v) for k, v in found.items() if v}
  return medians, files


def _row(name: str, machine: simulator.Machine, count: int) -> dict:
  years = [simulator.simulate(machine, seed=seed) for seed in range(count)]
  row = _summary(machine, years)
  print(
    f'{machine.mtbf_s / 3600:4g} h   {row["effective"]:7.2%} '
    f'({row["effective_least"]:.2%})   {row["failures"]:8.0f}   '
    f'{machine.interval_s:8.0f} s   {row["people_called"]:6.2f} a year, {name}'
  )
  return row


def _others(machine: simulator.Machine) -> list[dict]:
  """Effective time with other times to notice and to start."""
  return [
    {
      'mtbf_s': machine.mtbf_s,
      'detect_s': detect_s,
      'recover_s': recover_s,
      'effective': statistics.mean(
        simulator.simulate(
          dataclasses.replace(machine, detect_s=detect_s, recover_s=recover_s),
          seed=seed,
        ).effective
        for seed in range(_YEARS_OF_OTHERS)
      ),
    }
    for detect_s in _DETECT_S
    for recover_s in _RECOVER_S
  ]


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
