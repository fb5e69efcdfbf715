# SPDX-License-Identifier: Apache-2.0
"""Network cards: ethtool of AMD, NVIDIA and Broadcom, and ip.

What drivers call a thing differs, what it means does not: the tables give one
name to each. They are from the documentation and the sources of the kernel.
"""

import re

from zaya_jax.aegis.watch.telemetry import counters

Counters = counters.Counters

# By driver: its name of a counter, and ours.
_DRIVERS = {
  'ionic': {
    'link_down_count': 'nic_link_downs',
    'frames_rx_bad_fcs': 'nic_bad_frames',
    'hw_rx_dropped': 'nic_dropped',
    'hw_tx_dropped': 'nic_dropped',
    'hw_rx_missed_errors': 'nic_dropped',
    'hw_tx_aborted_errors': 'nic_send_errors',
  },
  'mlx5_core': {
    'link_down_events_phy': 'nic_link_downs',
    'rx_crc_errors_phy': 'nic_bad_frames',
    'rx_symbol_err_phy': 'nic_symbol_errors',
    'rx_pcs_symbol_err_phy': 'nic_symbol_errors',
    'rx_discards_phy': 'nic_dropped',
    'tx_discards_phy': 'nic_dropped',
    'rx_out_of_buffer': 'nic_dropped',
    'tx_errors_phy': 'nic_send_errors',
    'rx_pci_signal_integrity': 'nic_pcie_errors',
    'tx_pci_signal_integrity': 'nic_pcie_errors',
  },
  'bnxt_en': {
    'link_down_events': 'nic_link_downs',
    'rx_fcs_err_frames': 'nic_bad_frames',
    'rx_pcs_symbol_err': 'nic_symbol_errors',
    'rx_total_discard_pkts': 'nic_dropped',
    'tx_total_discard_pkts': 'nic_dropped',
    'tx_err': 'nic_send_errors',
  },
}
_TITLE = re.compile(r'== (\S+) (\S+)')
_COUNT = re.compile(r'\s*([\w.\- ]+): (\d+)')
_RECEIVED = {
  'errors': 'net_receive_errors',
  'crc_errors': 'net_bad_frames',
  'dropped': 'net_dropped',
}
_SENT = {
  'errors': 'net_send_errors',
  'carrier_errors': 'net_carrier_errors',
  'dropped': 'net_dropped',
}


def ethtool(text: str) -> Counters:
  """The counters of cards of known drivers.

  Args:
    text: for each card a line '== NAME DRIVER', and what `ethtool -S` prints.

  Raises:
    ValueError: if it is not of that form.
  """
  found: Counters = {}
  device, wanted, counts = '', {}, {}

  def finish() -> None:
    counters.take(found, counts, wanted, device=device)

  for line in text.splitlines():
    if title := _TITLE.fullmatch(line):
      finish()
      device, counts = title[1], {}
      wanted = _DRIVERS.get(title[2], {})
    elif not device:
      raise ValueError('it does not begin with a card')
    elif (count := _COUNT.fullmatch(line)) and count[1] in wanted:
      counts[count[1]] = int(count[2])
  finish()
  return found


def ip(text: str) -> Counters:
  """Errors of network devices, of `ip -j -s link`.

  Loopback, and devices with another end, as containers have them, are left out.

  Raises:
    ValueError: if it is not of that form.
  """
  found: Counters = {}
  for entry in counters.entries(text):
    device, stats = entry.get('ifname'), entry.get('stats64')
    if entry.get('link_type') != 'ether' or 'link' in entry or not device:
      continue
    if not isinstance(stats, dict):
      continue
    counters.take(found, stats.get('rx'), _RECEIVED, device=device)
    counters.take(found, stats.get('tx'), _SENT, device=device)
  return found
