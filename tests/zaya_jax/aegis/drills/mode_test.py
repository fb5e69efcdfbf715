# SPDX-License-Identifier: Apache-2.0
"""Drills by name, and a few real ones."""

import pytest

from zaya_jax import config as config_lib
from zaya_jax.aegis.drills import mode, table


def test_an_unknown_drill_is_refused_by_name():
  with pytest.raises(config_lib.UsageError, match='--drill=coffee is not one'):
    list(mode.run(('coffee',)))


@pytest.mark.long
def test_real_runs_come_to_the_same_bits():
  names = """kill_rank kill_coordinator segv_rank abort_rank raise_rank
    freeze_rank nan_step kill_in_save zombie_save ecc_line ecc_printed sigterm
    double_sigterm two_supervisors""".split()
  for row in mode.run(tuple(names)):
    assert row['passed'], row
    if table.DRILLS[row['fault']].equal:
      assert row['bit_equal']
      assert not row['samples_lost'] + row['samples_repeated']
