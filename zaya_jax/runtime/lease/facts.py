# SPDX-License-Identifier: Apache-2.0
"""Facts in the files of a folder, each with a version that only grows."""

import json
import os
import pathlib
from typing import Any

from zaya_jax.runtime import durable


class GarbledError(ValueError):
  """A file that holds no fact; its text is one sentence."""


class Folder:
  """Facts in files KEY.json; they survive a loss of power.

  Args:
    path: of the folder; the first write makes it.
  """

  def __init__(self, path: pathlib.Path):
    self.path = path

  def read(self, key: str) -> tuple[int, dict[str, Any]] | None:
    """The version and the value of a key; None: it has none.

    Raises:
      GarbledError: the file holds something else.
      OSError: it cannot be read.
    """
    path = self.path / f'{key}.json'
    try:
      fact = json.loads(path.read_bytes())
      version, value = fact['version'], fact['value']
      if type(version) is not int or not isinstance(value, dict):
        raise TypeError(type(value))
    except (FileNotFoundError, NotADirectoryError):
      return None
    except (ValueError, LookupError, TypeError) as error:
      raise GarbledError(
        f'{path} holds no fact of a lease; delete it if no process of this run '
        'is alive.'
      ) from error
    return version, value

  def keys(self) -> set[str]:
    """The names of all facts."""
    return {path.stem for path in self.path.glob('*.json')}

  def write(self, key: str, version: int, value: dict[str, Any]) -> None:
    """Replaces a key; it is on disk when this returns.

    Raises:
      OSError: it cannot be written.
    """
    self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
    content = json.dumps({'version': version, 'value': value}) + '\n'
    durable.replace(self.path / f'{key}.json', content.encode())


def of_run_dir(run_dir: str | os.PathLike[str]) -> pathlib.Path:
  """The folder of what a run directory remembers."""
  return pathlib.Path(run_dir, 'aegis', 'lease')


def old_generation(run_dir: str | os.PathLike[str]) -> dict[str, Any] | None:
  """What RUN_DIR/aegis/generation says: runs of old versions have this number.

  Raises:
    GarbledError: it holds no number.
    OSError: it cannot be read.
  """
  path = pathlib.Path(run_dir, 'aegis', 'generation')
  try:
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    numbers = [x if isinstance(x, int) else int(x['number']) for x in rows]
    return {'number': max(numbers)}
  except FileNotFoundError:
    return None
  except (ValueError, TypeError, LookupError) as error:
    raise GarbledError(
      f'{path} holds no number; write that of the last restart into it, or '
      'delete it if no process of this run is alive.'
    ) from error
