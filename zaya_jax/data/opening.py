# SPDX-License-Identifier: Apache-2.0
"""Opens folders of shards for all processes of a run.

Process 0 alone looks at names, sizes and times: a thousand processes that do
are a burden for a shared file system. What has to be hashed is divided.
"""

import functools
from collections.abc import Sequence

from pipelines.shards import manifest
from pipelines.sources import stamp
from zaya_jax.runtime import processes


def manifests(
  directories: Sequence[str], *, verify: bool = False
) -> tuple[list[manifest.Manifest], list[str]]:
  """The manifests of folders whose files are what they say; all call it.

  Args:
    directories: of shards.
    verify: compares all hashes, also where it was done before.

  Returns:
    The manifests, and what to tell the user.

  Raises:
    DataError: naming the file that is missing, added or damaged.
  """
  found, notes = [], []
  for directory in directories:
    which = functools.partial(_to_hash, directory, verify)
    pending = processes.first_says(which)
    mine = pending[processes.process() :: processes.processes()]
    stamp.compare(directory, mine)
    if pending:
      processes.barrier('verified')
      if not processes.first_says(functools.partial(stamp.write, directory)):
        notes.append(
          f'{directory} cannot be written to: its hashes are compared at each '
          'start'
        )
    found.append(manifest.read(directory))
  return found, notes


def _to_hash(directory: str, verify: bool) -> list[str]:
  pending = stamp.unverified(directory)
  everything = manifest.hashes(manifest.read(directory))
  return list(everything) if verify else pending
