# SPDX-License-Identifier: Apache-2.0
"""Mistakes that a rehearsal must find, each in a copy of the sources.

    python -m benchmarks.rehearsal_mutants [--recipe=configs/quickstart.toml]

A mistake is found if a check fails, and it is told which ones. The sources as
they are must pass. Each rehearsal takes minutes.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

from benchmarks import record

# What it is -> file, what stands there, what is put in its place, and a check
# that must fail.
MUTANTS = {
  'quota off by one': (
    'pipelines/order/quotas.py',
    'return tuple(int(share * period) for share in shares)',
    'return tuple(int(share * period) + (i == 0)'
    ' for i, share in enumerate(shares))',
    'quotas',
  ),
  'order at 4 rounds': (
    'pipelines/order/shuffle.py', 'ROUNDS = 8\n', 'ROUNDS = 4\n', 'order',
  ),
  'optimizer dropped': (
    'zaya_jax/train/start.py',
    "if here.keep == 'all':",
    "if here.keep == 'params':",
    'optimizer',
  ),
  'row repeated': (
    'zaya_jax/train/start.py',
    "place = {'row': row,",
    'corpus.loader.state = max(\n'
    '    segments.current(config).first_row, row - config.data.batch_size\n'
    '  )\n'
    "  place = {'row': row,",
    'ledger',
  ),
}  # fmt: skip


def main() -> None:
  """Rehearses with each mistake, and without; keeps what was found."""
  parser = argparse.ArgumentParser()
  parser.add_argument('--recipe', default='configs/quickstart.toml')
  parser.add_argument('--only', default='')
  name = pathlib.Path(__file__).stem
  parser.add_argument(
    '--output', type=pathlib.Path, default=record.RESULTS / f'{name}.json'
  )
  args = parser.parse_args()
  facts = record.circumstances(f'benchmarks.{name}', ('jax',))
  found, missed = {}, []
  for what in ('none', *MUTANTS):
    if args.only and args.only not in what:
      continue
    rows = rehearse(what, args.recipe)
    failed = [row['check'] for row in rows if not row['passed']]
    found[what] = {'failed': failed, 'seconds': sum(r['seconds'] for r in rows)}
    print(json.dumps({'mutant': what, **found[what]}), flush=True)
    # One may end the run itself.
    wanted = MUTANTS[what][3] if what in MUTANTS else ''
    if bool(wanted) != bool(failed):
      missed.append(what)
  record.write(args.output, {**facts, 'mutants': found, 'missed': missed})
  sys.exit(bool(missed))


def rehearse(what: str, recipe: str) -> list[dict]:
  """The rows of a rehearsal of a copy of the sources with a mistake in it."""
  with tempfile.TemporaryDirectory() as folder:
    tree = pathlib.Path(folder, 'tree')
    for top in ('zaya_jax', 'pipelines', 'ops', 'configs', 'docs'):
      shutil.copytree(
        record.ROOT / top,
        tree / top,
        ignore=shutil.ignore_patterns('__pycache__', 'build'),
      )
    if what in MUTANTS:
      file, old, new, _ = MUTANTS[what]
      text = (tree / file).read_text()
      assert text.count(old) == 1, f'{file} has changed: {old!r}'
      (tree / file).write_text(text.replace(old, new))
    done = subprocess.run(
      [sys.executable, '-m', 'zaya_jax.main', '--mode=rehearse']
      + [f'--recipe={recipe}', f'--run_dir={folder}/runs'],
      cwd=tree,
      stdout=subprocess.PIPE,
      check=False,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


if __name__ == '__main__':
  main()
