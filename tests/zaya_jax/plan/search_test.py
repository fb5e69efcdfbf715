# SPDX-License-Identifier: Apache-2.0
"""--plan.search against trying everything, and its words."""

import dataclasses
import itertools

import pytest

from zaya_jax import config as config_lib
from zaya_jax.plan import planner, search

WORDS = (
  '--plan.chip=h100', '--plan.devices=8', '--data.batch_size=32',
  '--data.seq_len=1024', '--model.num_layers=4', '--model.d_model=512',
  '--model.num_experts=8', '--model.d_expert=512',
  '--optim.newton_schulz_gram=false', '--model.scan_layers=false',
)  # fmt: skip


def _parse(*words):
  return config_lib.Config.parse([*WORDS, *words])


def _all(config):
  """Steps of all that the search may find, by what was tried."""
  found = {}
  for fsdp, expert, context, remat, parts in itertools.product(
    (1,), (2,), (1, 2, 4, 8), ('none', 'cheap', 'block'), (1, 2),
  ):  # fmt: skip
    try:
      each = dataclasses.replace(
        config,
        mesh=dataclasses.replace(
          config.mesh, fsdp=fsdp, expert=expert, context=context
        ),
        model=dataclasses.replace(config.model, remat=remat),
        optim=dataclasses.replace(config.optim, accumulation=parts),
      )
      plan = planner.make(each)
    except config_lib.UsageError:
      continue
    if plan['memory']['total'] <= search.FILLS * plan['memory']['capacity']:
      found[fsdp, expert, context, remat, parts] = plan['time']['step']
  return found


def test_the_fastest_is_that_of_all():
  config = _parse('--mesh.bucket_mib=64', '--mesh.fsdp=1', '--mesh.expert=2')
  whole = _parse('--mesh.bucket_mib=64')
  every = _all(whole)
  found = search.find(config)
  best = found['rows'][0]
  assert best['step'] == pytest.approx(min(every.values()), rel=2e-3)
  # What was given is kept, and the rest is as its row says.
  for row in found['rows']:
    assert row['settings']['mesh.expert'] == 2
    plan = planner.make(search.chosen(config, row))
    assert plan['time']['step'] == pytest.approx(row['step'])
    assert plan['memory']['total'] == row['memory']
  steps = [row['step'] for row in found['rows']]
  assert steps == pytest.approx(sorted(steps), rel=1e-3)


def test_less_memory_leaves_fewer_ways(monkeypatch):
  config = _parse('--mesh.context=1', '--mesh.fsdp=1', '--mesh.expert=1')
  rows = search.find(config)['rows']
  least = min(row['memory'] for row in rows)
  most = max(row['memory'] for row in rows)
  capacity = rows[0]['memory'] / 0.99 if most == least else most * 0.99
  monkeypatch.setattr(search, 'FILLS', capacity / 80e9)
  fewer = search.find(config)['rows']
  assert all(row['memory'] <= capacity for row in fewer)
  monkeypatch.setattr(search, 'FILLS', 1e-6)
  with pytest.raises(config_lib.UsageError, match='the smallest needs'):
    search.find(config)


def test_a_mesh_that_nothing_divides_is_told():
  with pytest.raises(config_lib.UsageError, match='must be a multiple of'):
    search.find(_parse('--plan.devices=7'))
