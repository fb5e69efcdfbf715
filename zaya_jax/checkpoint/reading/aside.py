# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that do not count are renamed to bad/STEP-REASON, by training."""

import logging
import os
import time

from zaya_jax.checkpoint.reading import high_water

# What disks and killed processes do. Else the mark stays: who removes what is
# newest could as well have left something else in its place.
_DAMAGE = {'missing', 'size', 'hash', 'seal', 'json', 'fingerprint', 'zombie'}


def move(directory: str, reason: str) -> None:
  """Renames a checkpoint that does not count, and tells of it."""
  folder, name = os.path.split(directory)
  bad = os.path.join(folder, 'bad')
  target = os.path.join(bad, f'{name}-{reason}')
  if os.path.lexists(target):
    target += f'-{time.time_ns()}'
  os.makedirs(bad, exist_ok=True)
  os.rename(directory, target)
  logging.warning(
    'Checkpoint %s does not count (%s); it was moved to %s.',
    directory,
    reason,
    target,
  )
  if reason in _DAMAGE:
    high_water.lower(os.path.dirname(folder), below=int(name))
