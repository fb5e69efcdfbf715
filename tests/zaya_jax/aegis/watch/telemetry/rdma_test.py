# SPDX-License-Identifier: Apache-2.0
"""RDMA ports, from stored answers without and with faults."""

import pytest

from tests.support import telemetry
from zaya_jax.aegis.watch.telemetry import rdma


def test_port_that_is_up_says_so():
  found = rdma.ports(telemetry.text('infiniband_clear.txt'))
  assert found['rdma_port_down{device="mlx5_0",port="1"}'] == 0
  assert found['rdma_port_up{device="mlx5_0",port="1"}'] == 1


@pytest.mark.parametrize(
  'read, name, form, rises',
  [
    (
      rdma.statistic,
      'rdma',
      'json',
      {
        'rdma_timeouts{device="mlx5_0",port="1"}': 6,
        'rdma_unrecoverable{device="bnxt_re0",port="1"}': 1,
        'rdma_timeouts{device="ionic_0",port="1"}': 2,
      },
    ),
    (
      rdma.ports,
      'infiniband',
      'txt',
      {
        'rdma_port_down{device="mlx5_0",port="1"}': 1,
        'rdma_symbol_errors{device="mlx5_0",port="1"}': 4,
        'rdma_link_downs{device="mlx5_0",port="1"}': 1,
        'rdma_timeouts{device="mlx5_0",port="1"}': 2,
      },
    ),
  ],
)
def test_faults_are_what_has_risen(read, name, form, rises):
  assert telemetry.rises(read, name, form) == rises


@pytest.mark.parametrize(
  'read, name',
  [
    (rdma.statistic, 'rdma_faults.json'),
    (rdma.ports, 'infiniband_faults.txt'),
  ],
)
def test_damaged_output_is_a_word_or_a_part_never_another_error(read, name):
  for wrong in telemetry.damaged(telemetry.text(name)):
    try:
      assert isinstance(read(wrong), dict)
    except ValueError as error:
      assert str(error).startswith('it ')
