# SPDX-License-Identifier: Apache-2.0
"""The command zaya-conform: writes the kit, or compares a port with it."""

import argparse
import json
import pathlib
import shutil
import sys

from zaya_conform import conformance, errors, exit_codes


def main() -> int:
  """Does what the command line says; the exit code is that of `zaya conform`.

  Returns:
    0: all that was given agrees; 2: the command line is wrong; 3: something
    differs, or the source cannot be used.
  """
  parser = argparse.ArgumentParser('zaya-conform', description=__doc__)
  what = parser.add_mutually_exclusive_group(required=True)
  what.add_argument('--output', help='a new folder for the kit')
  what.add_argument('--source', help='safetensors that a port gave: a file or '
                    'a folder')  # fmt: skip
  asked = parser.parse_args()
  if asked.output:
    return _write(pathlib.Path(asked.output))
  if not pathlib.Path(asked.source).exists():
    return _say(f'There is no file or folder {asked.source} (--source).')
  try:
    report = conformance.check(conformance.read(asked.source))
  except errors.FolderError as error:
    return _say(str(error), error.exit_code)
  report.print()
  print(json.dumps(report.summary()), flush=True)
  return exit_codes.DONE if report.agrees else exit_codes.UNUSABLE


def _write(folder: pathlib.Path) -> int:
  if folder.exists():
    return _say(f'--output={folder} exists already; name a new folder.')
  partial = folder.with_name(f'{folder.name}.partial')
  try:
    shutil.copytree(conformance.KIT, partial, dirs_exist_ok=True)
    partial.rename(folder)
  except OSError as error:
    return _say(f'--output={folder} cannot be written: {error}.')
  return _say(f'{folder}: start with its README.md', exit_codes.DONE)


def _say(sentence: str, code: int = exit_codes.USAGE) -> int:
  print(sentence, file=sys.stderr)
  return code
