# SPDX-License-Identifier: Apache-2.0
"""What training reads from storage.

A window is cut from its record, which is one read of the compressed bytes; a
window of several records reads them all. The order is a shuffle of the whole
source: nothing that was read is of use again soon, in memory or a page cache.
"""

from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.bench.machine import file
from zaya_jax.bench.sweep import record

_COPY = 'to pinned host'
PAGE = 4096  # Bytes of a page of a file system.
IOPS = 70_000  # Of one store, as in the storage sizing published for ZAYA1.
# What zstd leaves of ids as frequent as words are: 97 MB of 262 MB
# (`benchmarks.data_loader`).
PACKED = 0.37


def reads(
  config: config_lib.Config,
  step_tokens: int,
  machine: file.Machine | None = None,
) -> dict[str, Any]:
  """Reads of a step, in records, bytes and pages.

  Args:
    config: of the run; the records are those of --data.record_tokens.
    step_tokens: of all devices together.
    machine: whose disk counts, if it was measured.
  """
  data = config.data
  token = 2 if config.model.vocab_size <= 65_536 else 4
  records = (
    step_tokens / data.seq_len * max(1, data.seq_len / data.record_tokens)
  )
  record_bytes = data.record_tokens * token * PACKED
  pages = records * -(-record_bytes // PAGE)
  limit = iops(machine) or IOPS
  return {
    'bytes_per_step': records * record_bytes,
    'reads_per_step': records,
    'pages_per_step': pages,
    'iops_limit': limit,
    'step_s_at_limit': pages / limit,
  }


def iops(machine: file.Machine | None) -> float | None:
  """Scattered reads of a page in a second, as measured."""
  rates = [
    1 / p.seconds
    for p in _points(machine, 'storage')
    if (p.case, p.size) == ('scattered read', PAGE)
  ]
  return round(max(rates)) if rates else None


def copy_s(machine: file.Machine | None, size: float) -> float | None:
  """Seconds to copy from a device into pinned memory, as measured."""
  curve = [p for p in _points(machine, 'transfer') if p.case == _COPY]
  curve.sort(key=lambda p: p.size)
  return record.seconds(curve, size) if curve else None


def _points(machine, section):
  known = machine.sections.get(section) if machine else None
  return known.points if known else ()
