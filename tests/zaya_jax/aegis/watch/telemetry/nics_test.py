# SPDX-License-Identifier: Apache-2.0
"""ethtool and ip, from stored answers without and with faults."""

import pytest

from tests.support import telemetry
from zaya_jax.aegis.watch.telemetry import nics


def test_drivers_have_names_in_common():
  found = nics.ethtool(telemetry.text('ethtool_clear.txt'))
  assert found['nic_link_downs{device="ens1f0np0"}'] == 1
  assert found['nic_link_downs{device="eth2"}'] == 2
  assert found['nic_bad_frames{device="enp181s0"}'] == 0
  assert not [name for name in found if 'eno1' in name]  # Of another driver.


@pytest.mark.parametrize(
  'read, name, form, rises',
  [
    (
      nics.ethtool,
      'ethtool',
      'txt',
      {
        'nic_bad_frames{device="enp181s0"}': 9,
        'nic_link_downs{device="ens1f0np0"}': 4,
        'nic_pcie_errors{device="ens1f0np0"}': 3,
        'nic_dropped{device="eth2"}': 8,
      },
    ),
    (
      nics.ip,
      'ip',
      'json',
      {
        'net_receive_errors{device="eth0"}': 7,
        'net_dropped{device="eth0"}': 1,
        'net_carrier_errors{device="eth0"}': 2,
      },
    ),
  ],
)
def test_faults_are_what_has_risen(read, name, form, rises):
  assert telemetry.rises(read, name, form) == rises


@pytest.mark.parametrize(
  'read, name',
  [(nics.ethtool, 'ethtool_faults.txt'), (nics.ip, 'ip_faults.json')],
)
def test_damaged_output_is_a_word_or_a_part_never_another_error(read, name):
  for wrong in telemetry.damaged(telemetry.text(name)):
    try:
      assert isinstance(read(wrong), dict)
    except ValueError as error:
      assert str(error).startswith('it ')
