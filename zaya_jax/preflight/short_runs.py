# SPDX-License-Identifier: Apache-2.0
"""Short runs of --mode=bench, beside what a good node of this kind has given.

    python -m zaya_jax.preflight.short_runs machine.json

They are a process of their own, which can be killed when a device hangs. It
prints one JSON object a line: the run, its place, and its rate as a share of
that of the file.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator

from zaya_jax.bench.sweep import record
from zaya_jax.preflight import errors, values

LIMIT_S = 75.0  # With hung programs a node has its verdict in two minutes.
RUNS = ('memory', 'transfer', 'collective')
_LARGEST = 2**28  # Bytes of an array or a message.
_REPEATS = 5
# A clock that was low, or something else that ran: what is slow stays slow.
_ATTEMPTS = 3
_ENOUGH = 0.95  # Of the file's rate: no further attempt.

Line = dict[str, str | float]


class ShortRuns:
  """The runs of a node; they start when the first is asked for.

  Args:
    path: of the machine file; '': nothing runs.
    command: program and words before the path, for tests.
    limit_s: seconds for all.
  """

  def __init__(
    self,
    path: str,
    command: Iterable[str] = (sys.executable, '-m', __name__),
    limit_s: float = LIMIT_S,
  ):
    self._path, self._command, self._limit_s = path, tuple(command), limit_s
    self._lines: list[Line] | None = None
    self._fault = ''

  def values(self, name: str) -> values.Values:
    """The shares of one of RUNS by place, or of 'chip' whether it is alike.

    Raises:
      SickError: if the runs did not end, or one of them failed.
      UnseenError: if there is no file, or nothing in it to compare with.
    """
    if not self._path:
      raise errors.UnseenError('--preflight.machine= names no file')
    if self._lines is None:
      self._lines = self._run()
    mine = [x for x in self._lines if x['run'] == name]
    found: values.Values = {
      str(x['place']): x['share'] for x in mine if 'share' in x
    }
    # What ended before a fault stands.
    if not found and self._fault:
      raise errors.SickError(self._fault)
    if not found:
      why = next((str(x['skipped']) for x in mine), 'it did not run')
      raise errors.UnseenError(why)
    return found

  def _run(self) -> list[Line]:
    process = subprocess.Popen(
      (*self._command, self._path),
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      errors='replace',
      start_new_session=True,
    )
    try:
      out, err = process.communicate(timeout=self._limit_s)
    except subprocess.TimeoutExpired as late:
      os.killpg(process.pid, signal.SIGKILL)
      out = (late.stdout or b'').decode(errors='replace')
      self._fault = f'the short runs do not end within {self._limit_s:g} s'
      try:
        process.communicate(timeout=1)
      except subprocess.TimeoutExpired:  # It waits for a device.
        pass
    else:
      if process.returncode:
        last = (err.strip().splitlines() or ['nothing'])[-1]
        code = process.returncode
        self._fault = f'the short runs ended with {code}: {last[:160]}'
    return list(_parsed(out))


def _parsed(text: str) -> Iterator[Line]:
  for line in text.splitlines():
    if line.startswith('{'):
      try:
        yield json.loads(line)
      except ValueError:  # It was cut off.
        return


def share(
  points: Iterable[record.Point],
  case: str,
  devices: int,
  measure: Callable[[int], float],
) -> Line:
  """One run beside the file's: its best rate as a share, or why there is none.

  Args:
    points: of a section of the file.
    case: of the section.
    devices: that take part.
    measure: seconds of a call of so many bytes.
  """
  found = [p for p in record.curve(points, case, devices) if p.size <= _LARGEST]
  if not found:
    return {'skipped': f'the file has no {case} on {devices}'}
  whole, best = found[-1], 0.0
  for _ in range(_ATTEMPTS):
    best = max(best, whole.seconds / measure(whole.size))
    if best >= _ENOUGH:
      break
  return {'share': round(best, 3)}


def lines(path: str) -> Iterator[Line]:
  """Runs all and yields what was found.

  Raises:
    MachineFileError: if the file is damaged.
    WrongError: if a device gives wrong values.
  """
  # Only this process needs a device.
  import jax

  from zaya_jax.bench.machine import collectives, known, memory, transfer

  machine, devices = known.find(path), jax.local_devices()
  mine = devices[0].device_kind
  alike = mine == machine.chip
  chip = 'as there' if alike else f'{mine}, not {machine.chip}'
  yield {'run': 'chip', 'place': '', 'share': chip}
  if not alike:
    for name in RUNS:
      yield {'run': name, 'place': '', 'skipped': 'the file is of another chip'}
    return
  points = {noun: section.points for noun, section in machine.sections.items()}

  def once(module, case):
    return lambda size: module.measure(case, size, None, _REPEATS).seconds

  for device in devices:
    with jax.default_device(device):
      line = share(points.get('memory', ()), 'triad', 1, once(memory, 'triad'))
    yield {'run': 'memory', 'place': f'device {device.id}', **line}
  for case in ('to device', 'to host'):  # Of the first device.
    line = share(points.get('transfer', ()), case, 1, once(transfer, case))
    yield {'run': 'transfer', 'place': case, **line}
  if len(devices) < 2:
    why = 'one device has no collective'
    yield {'run': 'collective', 'place': '', 'skipped': why}
    return
  group = collectives.Group(devices)
  line = share(
    points.get('collectives', ()),
    'all-reduce',
    len(devices),
    once(group, 'all-reduce'),
  )
  yield {'run': 'collective', 'place': 'all-reduce', **line}


if __name__ == '__main__':
  for found in lines(sys.argv[1]):
    print(json.dumps(found), flush=True)
