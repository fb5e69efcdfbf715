# SPDX-License-Identifier: Apache-2.0
"""RDMA ports: `rdma -j statistic`, and /sys/class/infiniband."""

import re
from typing import Any

from zaya_jax.aegis.watch.telemetry import counters

Counters = counters.Counters

# What InfiniBand, mlx5, bnxt_re and ionic call a thing, and our name. Packets
# out of order are left out: adaptive routing makes them.
_WANTED = {
  'symbol_error': 'rdma_symbol_errors',
  'link_error_recovery': 'rdma_link_recoveries',
  'link_downed': 'rdma_link_downs',
  'port_rcv_errors': 'rdma_receive_errors',
  'local_link_integrity_errors': 'rdma_receive_errors',
  'excessive_buffer_overrun_errors': 'rdma_receive_errors',
  'port_xmit_discards': 'rdma_dropped',
  'out_of_buffer': 'rdma_dropped',
  'rx_out_of_buffer': 'rdma_dropped',
  'resp_rx_outof_buf': 'rdma_dropped',
  'local_ack_timeout_err': 'rdma_timeouts',
  'to_retransmits': 'rdma_timeouts',
  'tx_rdma_ack_timeout': 'rdma_timeouts',
  'packet_seq_err': 'rdma_sequence_errors',
  'seq_err_naks_rcvd': 'rdma_sequence_errors',
  'req_rx_pkt_seq_err': 'rdma_sequence_errors',
  'max_retry_exceeded': 'rdma_retries_exceeded',
  'req_transport_retries_exceeded': 'rdma_retries_exceeded',
  'req_tx_retry_excd_err': 'rdma_retries_exceeded',
  'unrecoverable_err': 'rdma_unrecoverable',
  'res_tx_pci_err': 'rdma_unrecoverable',
  'res_rx_pci_err': 'rdma_unrecoverable',
  'res_mem_err': 'rdma_unrecoverable',
}
_LINE = re.compile(
  r'/sys/class/infiniband/([\w.-]+)/ports/(\d+)/'
  r'(?:(state)|(?:hw_)?counters/(\w+)):(.*)'
)


def statistic(text: str) -> Counters:
  """The counters of each port, of `rdma -j statistic`.

  Raises:
    ValueError: if it is not of that form.
  """
  found: Counters = {}
  for entry in counters.entries(text):
    device, port = entry.get('ifname'), entry.get('port')
    if isinstance(device, str) and type(port) is int:
      counters.take(found, entry, _WANTED, device=device, port=port)
  return found


def ports(text: str) -> Counters:
  """Whether each port is up, and its counters.

  `rdma_port_down` is 0 or 1, and `rdma_port_up` the opposite: a rule that waits
  sees it rise when the port is back.

  Args:
    text: lines PATH:VALUE of files under /sys/class/infiniband.

  Raises:
    ValueError: if it has none.
  """
  found: Counters = {}
  values: dict[tuple[str, int], dict[str, Any]] = {}
  for line in text.splitlines():
    if match := _LINE.fullmatch(line):
      device, port, state, counter, value = match.groups()
      values.setdefault((device, int(port)), {})[state or counter] = value
  if text.strip() and not values:
    raise ValueError('it has no port')
  for (device, port), there in values.items():
    labels = {'device': device, 'port': port}
    if state := there.get('state'):  # As '4: ACTIVE'.
      is_up = state.strip().endswith(': ACTIVE')
      found[counters.name('rdma_port_down', **labels)] = float(not is_up)
      found[counters.name('rdma_port_up', **labels)] = float(is_up)
    counters.take(found, there, _WANTED, **labels)
  return found
