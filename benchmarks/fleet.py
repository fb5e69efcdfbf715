# SPDX-License-Identifier: Apache-2.0
"""What a supervisor of many nodes costs: time, and questions to files.

  python -m benchmarks.fleet [--nodes=128] [--ranks=8] [--seconds=20]

Agents are programs that report twice a second what ranks that train would say.
The run directory stands for a file system that many share.
"""

import argparse
import collections
import json
import os
import pathlib
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence

from benchmarks import record
from zaya_jax import config as config_lib
from zaya_jax.aegis.supervisor import supervisor
from zaya_jax.aegis.supervisor.nodes import link

# In the standard library alone, as 128 of them start at once.
_AGENT = """
import json, os, select, sys, time
sent, ranks, generation, buffer, step = 0, [], 0, b'', 0
def tell(kind, **more):
  global sent
  sent += 1
  report = {'sent': sent, 'kind': kind, 'generation': generation}
  now = {'entered': step, 'done': max(0, step - 1), 'looks': 5 * step}
  report |= {'ranks': [r | now for r in ranks]}
  os.write(1, json.dumps(report | more).encode() + b'\\n')
tell('hello', version=sys.argv[1])
while True:
  if select.select([0], [], [], 0.5)[0]:
    data = os.read(0, 65536)
    if not data:
      break
    *lines, buffer = (buffer + data).split(b'\\n')
    for order in map(json.loads, lines):
      if order['do'] == 'start':
        generation = order['places'][0]['generation']
        ranks = [{'rank': p['rank'], 'pid': 4194304, 'phase': 'step',
                  'process': 'S', 'exit_code': None, 'failed_ns': None,
                  'why': '', 'late': 0, 'starved': False}
                 for p in order['places']]
        tell('started')
      elif order['do'] == 'kill':
        there, ranks = ranks, []
        tell('killed', stuck=[])
  else:
    step += 1
    tell('status')
"""


def main(argv: Sequence[str]) -> int:
  """Runs the command line; returns 0."""
  parser = argparse.ArgumentParser()
  parser.add_argument('--nodes', type=int, default=128)
  parser.add_argument('--ranks', type=int, default=8, help='on each node')
  parser.add_argument('--seconds', type=float, default=20.0)
  parser.add_argument(
    '--output', type=pathlib.Path, default=record.RESULTS / 'fleet.json'
  )
  args = parser.parse_args(argv)
  about = record.circumstances('benchmarks.fleet', ())
  with tempfile.TemporaryDirectory() as folder:
    found = measure(pathlib.Path(folder), args.nodes, args.ranks, args.seconds)
  print(json.dumps(found))
  record.write(args.output, {**about, **found})
  return 0


def measure(
  folder: pathlib.Path, nodes: int, ranks: int, seconds: float
) -> dict[str, object]:
  """The cost of a supervisor of so many nodes, in this process."""
  agent = folder / 'agent'
  agent.write_text(f'#!{sys.executable}\n{_AGENT}')
  agent.chmod(0o755)
  run_dir = folder / 'run'
  for step in range(3):
    (run_dir / 'checkpoints' / str(step)).mkdir(parents=True)
  asked: collections.Counter[str] = collections.Counter()

  def note(event: str, arguments: tuple[object, ...]) -> None:
    if event in ('open', 'os.listdir', 'os.scandir', 'os.rename'):
      if str(arguments[0]).startswith(str(run_dir)):
        asked[event] += 1

  sys.addaudithook(note)
  _count(asked, 'stat', str(run_dir))
  config = config_lib.Config(
    run_dir=str(run_dir),
    aegis=config_lib.AegisConfig(
      nodes=tuple(f'n{i}' for i in range(nodes)),
      ranks_per_node=ranks,
      agent=f'{agent} {config_lib.VERSION}',
    ),
  )
  found: dict[str, object] = {}
  take, taken = link.Link._take, collections.Counter[str]()

  def counted(self: link.Link, report: dict[str, object]) -> bool:
    taken['reports'] += 1
    return take(self, report)

  link.Link._take = counted  # type: ignore[method-assign]

  def look() -> None:
    path = run_dir / 'incidents.jsonl'
    while not path.exists() or '"running"' not in path.read_text():
      time.sleep(0.5)
    time.sleep(3)
    asked.clear()
    taken.clear()
    cpu, wall = time.process_time(), time.monotonic()
    time.sleep(seconds)
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    found.update(
      nodes=nodes,
      ranks_per_node=ranks,
      seconds=round(wall, 2),
      reports_per_s=round(taken['reports'] / wall, 1),
      core_share=round(cpu / wall, 4),
      questions_per_s=round(asked.total() / wall, 3),
      questions=dict(asked),
    )
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)

  threading.Thread(target=look, daemon=True).start()
  supervisor.supervise(config, ('train',))
  return found


def _count(asked: collections.Counter[str], name: str, under: str) -> None:
  """Counts calls of os.NAME about files under a folder; none is audited."""
  true = getattr(os, name)

  def counted(path, *args, **kwargs):
    if str(path).startswith(under):
      asked[name] += 1
    return true(path, *args, **kwargs)

  setattr(os, name, counted)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
