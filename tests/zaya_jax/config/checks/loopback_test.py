# SPDX-License-Identifier: Apache-2.0
"""Which addresses only this machine reaches."""

import pytest

from zaya_jax.config.checks import loopback


@pytest.mark.parametrize(
  'address, fits',
  [
    ('127.0.0.1', True),
    ('127.0.0.9', True),
    ('::1', True),
    ('localhost', True),
    ('0.0.0.0', False),
    ('::', False),
    ('10.0.0.1', False),
    ('127.0.0.1.evil.example', False),
  ],
)
def test_addresses(address, fits):
  assert loopback.is_address(address) is fits


@pytest.mark.parametrize(
  'host, fits',
  [
    ('127.0.0.1:9464', True),
    ('LOCALHOST', True),
    ('[::1]:9464', True),
    ('evil.example:9464', False),
    ('[evil', False),
    ('', False),
  ],
)
def test_hosts_of_requests(host, fits):
  assert loopback.names(host) is fits
