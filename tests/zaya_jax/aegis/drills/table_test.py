# SPDX-License-Identifier: Apache-2.0
"""Drills: their faults exist, and their flags are right."""

import pytest

from zaya_jax import config as config_lib
from zaya_jax.aegis.drills import table, trial
from zaya_jax.runtime import faults


@pytest.mark.parametrize('drill', table.DRILLS.values())
def test_every_fault_is_known(drill):
  for entry in filter(None, drill.faults.split(',')):
    kind, _, where = entry.partition('@')
    assert kind in faults.KINDS
    assert len(where.split(':')) == 4


@pytest.mark.parametrize('name', table.DRILLS)
def test_flags_of_a_drill_are_right(name, tmp_path):
  drill = table.DRILLS[name]
  flags = [*trial.FLAGS, f'--run_dir={tmp_path}', '--data.input=text.txt']
  flags += [flag.format(run_dir=tmp_path) for flag in drill.flags]
  aegis = config_lib.Config.parse(flags).aegis
  ranks = (len(aegis.nodes) - aegis.spares) * aegis.ranks_per_node
  for entry in filter(None, drill.faults.split(',')):
    _, _, rank, _ = entry.partition('@')[2].split(':')
    assert int(rank) < ranks
