# SPDX-License-Identifier: Apache-2.0
"""Which addresses and hosts are this machine alone."""

import ipaddress

_NAMES = ('localhost', 'localhost.localdomain')


def is_address(address: str) -> bool:
  """Whether only this machine reaches an address."""
  try:
    return ipaddress.ip_address(address).is_loopback
  except ValueError:
    return address in _NAMES


def names(host: str) -> bool:
  """Whether the Host of a request, with or without a port, is this machine."""
  if host.startswith('['):
    return is_address(host[1:].partition(']')[0])
  return is_address(host.partition(':')[0].lower())
