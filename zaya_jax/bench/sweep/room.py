# SPDX-License-Identifier: Apache-2.0
"""How much memory measurements may use."""

import os

import jax

from zaya_jax.runtime import processes


def free() -> float:
  """Bytes that are free on each device, on that with the least.

  Virtual devices of a CPU share its memory, of which half is left to others.
  """
  devices = jax.local_devices()
  found = []
  for device in devices:
    stats = device.memory_stats()
    if stats and 'bytes_limit' in stats:
      found.append(stats['bytes_limit'] - stats.get('bytes_in_use', 0))
  if not found:
    pages = os.sysconf('SC_AVPHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
    found = [pages / 2 / len(devices) / processes.processes()]
  return min(processes.all_say(min(found)))
