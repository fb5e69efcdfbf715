# SPDX-License-Identifier: Apache-2.0
"""What every result in benchmarks/results says of how it was measured."""

import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

from zaya_jax import config as config_lib

ROOT = pathlib.Path(__file__).parent.parent
RESULTS = ROOT / 'benchmarks' / 'results'
# Of benchmarks that go on behind the last line of what is there: runs of the
# record are not those of a reader's machine and text.
OWN = ROOT / 'runs'


def circumstances(module: str, packages: Sequence[str]) -> dict[str, Any]:
  """The command, date, hardware with its load, and versions; call it first.

  Args:
    module: the benchmark, as 'benchmarks.moe_cost'.
    packages: those whose version matters beside Python's.

  Raises:
    SystemExit: one of them is missing.
  """
  return {
    'command': ' '.join(['python -m', module, *sys.argv[1:]]),
    'date': datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds'),
    'hardware': {**_hardware(), 'load_before': os.getloadavg()[0]},
    'versions': {
      'python': platform.python_version(),
      **{name: _version(module, name) for name in packages},
    },
  }


def _version(module: str, package: str) -> str:
  try:
    return metadata.version(package)
  except metadata.PackageNotFoundError:
    raise SystemExit(
      f'{module} needs {package}, which {sys.executable} does not have: '
      f'python -m pip install {package}'
    ) from None


def preset(name: str, more: Sequence[str] = ()) -> config_lib.Config:
  """The settings of configs/NAME.flags; flags in `more` win."""
  path = ROOT / 'configs' / f'{name}.flags'
  return config_lib.Config.parse([f'--flagfile={path}', *more])


def run_trials(
  module: str, trials: Callable[[str, int, int], dict[str, Any]], count: int
) -> None:
  """The command line of --trials random trials: prints and keeps the counts.

  Args:
    module: the benchmark, as 'benchmarks.tamper'.
    trials: (folder for their files, how many, seed) -> counts.
    count: how many without --trials.
  """
  name = module.rpartition('.')[2]
  parser = argparse.ArgumentParser()
  parser.add_argument('--trials', type=int, default=count)
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument(
    '--output', type=pathlib.Path, default=RESULTS / f'{name}.json'
  )
  args = parser.parse_args()
  facts = circumstances(module, ('orbax-checkpoint',))
  with tempfile.TemporaryDirectory() as folder:
    result = trials(folder, args.trials, args.seed)
  print(json.dumps(result, indent=2))
  write(args.output, {**facts, **result})


def picture(
  result: str, image: str, draw: Callable[[pathlib.Path], str]
) -> None:
  """The command line [RESULT] [--output=PICTURE.svg] of a picture.

  Args:
    result: by default, in benchmarks/results.
    image: by default, in docs/images.
    draw: a result's file -> the picture.
  """
  parser = argparse.ArgumentParser()
  parser.add_argument(
    'result', type=pathlib.Path, nargs='?', default=RESULTS / result
  )
  images = ROOT / 'docs' / 'images'
  parser.add_argument('--output', type=pathlib.Path, default=images / image)
  args = parser.parse_args()
  args.output.write_text(draw(args.result), encoding='utf-8')


def write(path: pathlib.Path, result: dict[str, Any]) -> None:
  """Writes a result as JSON for people and programs."""
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(json.dumps(result, indent=2) + '\n', encoding='utf-8')


def _hardware() -> dict[str, Any]:
  model = re.search(
    r'model name\s*: (.*)', pathlib.Path('/proc/cpuinfo').read_text()
  )
  return {
    'cpu': model[1] if model else platform.machine(),
    'cores': len(os.sched_getaffinity(0)),
  }
