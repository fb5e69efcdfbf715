# SPDX-License-Identifier: Apache-2.0
"""Presets: the files of configs/, found from every folder, and the dial.

A wheel has them in the package, a clone at its root.
"""

import os
import pathlib

_HOMES = pathlib.Path(__file__).parents[2], pathlib.Path(__file__).parents[3]
_FOLDER = 'configs/'


def find(path: str) -> str:
  """The path; of `configs/NAME` that is not there, the file that is shipped."""
  if path.startswith(_FOLDER) and not os.path.exists(path):
    shipped = (home / path for home in _HOMES)
    return next((str(file) for file in shipped if file.exists()), path)
  return path


def in_flag(word: str) -> str:
  """A flag, --name=value, with `find` of its value."""
  name, equals, value = word.partition('=')
  return f'{name}{equals}{find(value)}'
