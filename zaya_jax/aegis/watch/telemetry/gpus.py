# SPDX-License-Identifier: Apache-2.0
"""amd-smi, with the names of ROCm's device-metrics-exporter where it has one.

No AMD GPU was at hand: the forms are those of amd-smi's documentation and
sources, of ROCm 6.3 (a list) and 7 (the list under "gpu_data").
"""

import re
from typing import Any

from zaya_jax.aegis.watch.telemetry import counters

Counters = counters.Counters

_TOTALS = {
  'total_correctable_count': 'gpu_ecc_correct_total',
  'total_uncorrectable_count': 'gpu_ecc_uncorrect_total',
  'total_deferred_count': 'gpu_ecc_deferred_total',
}
_BLOCK = {
  'correctable_count': 'gpu_ecc_correct_',
  'uncorrectable_count': 'gpu_ecc_uncorrect_',
  'deferred_count': 'gpu_ecc_deferred_',
}
_PCIE = {
  'replay_count': 'pcie_replay_count',
  'replay_roll_over_count': 'pcie_replay_rollover_count',
  'nak_sent_count': 'pcie_nack_sent_count',
  'nak_received_count': 'pcie_nack_received_count',
}
_XGMI = {'NO_ERRORS': 0.0, 'ERROR': 1.0, 'MULTIPLE_ERRORS': 2.0}
_PAGES = {
  'retired': 'gpu_bad_pages_retired',
  'pending': 'gpu_bad_pages_pending',
  'un_res': 'gpu_bad_pages_unreservable',
}
_BLOCK_NAME = re.compile(r'\w{1,32}', re.ASCII)


def metric(text: str) -> Counters:
  """Errors of memory, PCIe and XGMI, of `amd-smi metric --json`.

  Raises:
    ValueError: if it is not of that form.
  """
  found: Counters = {}
  for gpu, entry in _gpus(text):
    counters.take(found, entry.get('ecc'), _TOTALS, gpu_id=gpu)
    counters.take(found, entry.get('pcie'), _PCIE, gpu_id=gpu)
    for block, counts in _dict(entry.get('ecc_blocks')).items():
      if _BLOCK_NAME.fullmatch(block):
        wanted = {k: prefix + block.lower() for k, prefix in _BLOCK.items()}
        counters.take(found, counts, wanted, gpu_id=gpu)
    status = str(entry.get('xgmi_err')).removeprefix('AMDSMI_XGMI_STATUS_')
    if status in _XGMI:  # Since it was last asked.
      found[counters.name('gpu_xgmi_errors', gpu_id=gpu)] = _XGMI[status]
  return found


def pages(text: str) -> Counters:
  """How many pages are bad, of `amd-smi bad-pages --json`.

  Raises:
    ValueError: if it is not of that form.
  """
  found: Counters = {}
  for gpu, entry in _gpus(text):
    for theirs, ours in _PAGES.items():
      value = entry.get(theirs)  # A list, the only page, or a sentence.
      if isinstance(value, list | dict):
        count = len(value) if isinstance(value, list) else 1
      elif isinstance(value, str) and value.startswith('No bad pages'):
        count = 0
      else:
        continue
      found[counters.name(ours, gpu_id=gpu)] = float(count)
  return found


def ras(text: str) -> Counters:
  """1 for each block without ECC, of `amd-smi static --ras --json`.

  Raises:
    ValueError: if it is not of that form.
  """
  found: Counters = {}
  for gpu, entry in _gpus(text):
    states = _dict(_dict(entry.get('ras')).get('ecc_block_state'))
    for block, state in states.items():
      if _BLOCK_NAME.fullmatch(block) and state in ('ENABLED', 'DISABLED'):
        key = counters.name('gpu_ras_disabled', gpu_id=gpu, block=block.lower())
        found[key] = float(state == 'DISABLED')
  return found


def _gpus(text: str) -> list[tuple[int, dict[str, Any]]]:
  """The index and the entry of each GPU."""
  found = [
    (entry['gpu'], entry)
    for entry in counters.entries(text)
    if type(entry.get('gpu')) is int
  ]
  if not found:
    raise ValueError('it has no GPU')
  return found


def _dict(value: Any) -> dict[str, Any]:
  return value if isinstance(value, dict) else {}
