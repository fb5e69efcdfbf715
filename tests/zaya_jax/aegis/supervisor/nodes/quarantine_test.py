# SPDX-License-Identifier: Apache-2.0
"""Nodes that another run has condemned."""

from zaya_jax.aegis.decide import state as state_lib
from zaya_jax.aegis.supervisor.nodes import quarantine
from zaya_jax.runtime import lease, run_files


def test_other_runs_know_of_condemned_nodes(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_STATE_HOME', str(tmp_path / 'state'))
  stores = []
  for name in ('one', 'two'):
    run_dir = tmp_path / name
    run_id = run_files.run_id(run_dir)
    stores.append(lease.open('local', run_id=run_id, run_dir=run_dir))
  held = state_lib.Held(node='n7', reason='ECC', since_s=1.0, until_s=9.0)
  assert quarantine.read(stores[1], ('n7', 'n8')) == ()
  quarantine.add(stores[0], [held], '/runs/one')
  quarantine.add(stores[0], [state_lib.Held(node='n9')], '/runs/one')
  assert quarantine.read(stores[1], ('n7', 'n8')) == (held,)
