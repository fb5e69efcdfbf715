# SPDX-License-Identifier: Apache-2.0
"""Text to shards on the machines of a Ray cluster that share a folder.

    ray job submit -- python /shared/zaya_jax/deploy/prepare_ray.py FLAGS

FLAGS are those of one command (`--data.input=/shared/text --output=/shared/web
--data.tokenizer=/shared/tokenizer`); without a cluster Ray begins one on this
machine. Each part of the work is a task of one core, which Ray starts again if
its process or its machine is lost; then one task does what is left, with all
cores of a machine. The result is that of one machine, to the byte.
"""

import argparse
import os
import pathlib
import sys

try:
  import ray
except ImportError as error:
  raise SystemExit('prepare_ray.py needs Ray: pip install ray.') from error

_ROOT = str(pathlib.Path(__file__).resolve().parents[1])
_EACH = 4  # Parts of a core: one that takes long keeps few others waiting.


@ray.remote
def _prepare(words: list[str], folder: str) -> int:
  """The exit code of a part, in this very process: it ends when that does."""
  os.chdir(folder)
  sys.path.insert(0, _ROOT)
  from zaya_jax import main

  return main.main(['zaya_jax', '--mode=prepare', *words])


def prepare(words: list[str], parts: int) -> int:
  """Prepares in parts, then what is left.

  Args:
    words: the flags of one command.
    parts: how many; 0: four for each core of the cluster.

  Returns:
    The exit code; of the first part that failed, which ends the others; 2, if
    there is no core.
  """
  ray.init()
  parts, here = parts or _EACH * sum(_cores()), os.getcwd()
  if not parts:
    print(
      'prepare_ray.py: error: no machine of the Ray cluster has a core; start '
      'one that has, or give --parts=N where machines come with the work.',
      file=sys.stderr,
    )
    return 2

  def begin(name, cpus, *more):
    task = _prepare.options(name=name, num_cpus=cpus)
    return task.remote([*words, f'--data.workers={cpus}', *more], here)

  tasks = [
    begin(f'part {i}', 1, f'--data.part={i}/{parts}') for i in range(parts)
  ]
  while tasks:
    (done,), tasks = ray.wait(tasks)
    if code := ray.get(done):
      for task in tasks:
        ray.cancel(task)
      return code
  # The largest machine of the start may be gone: nobody would take the task.
  return ray.get(begin('the rest', max([1, *_cores()])))


def _cores() -> list[int]:
  """Of each machine that is there."""
  return [int(n['Resources'].get('CPU', 0)) for n in ray.nodes() if n['Alive']]


if __name__ == '__main__':
  parser = argparse.ArgumentParser(
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  parser.add_argument(
    '--parts', type=int, default=0, help='default: four for each core'
  )
  known, flags = parser.parse_known_args()
  sys.exit(prepare(flags, known.parts))
