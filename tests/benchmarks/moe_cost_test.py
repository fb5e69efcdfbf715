# SPDX-License-Identifier: Apache-2.0
"""The layers that are compared, and the shape of the result; no times."""

import jax
import numpy as np
import pytest
from flax import nnx

from benchmarks import moe_cost
from zaya_jax import config as config_lib

T, D, E = 24, 8, 3


def test_every_case_of_a_size_has_a_row():
  rows = moe_cost.measure(T, D, (E, 1), repeats=1)
  assert [(r['experts'], r['routing'], r['pass']) for r in rows] == [
    *(
      (E, routing, name)
      for routing in ('balanced', 'fresh', 'one expert')
      for name in ('forward', 'backward')
    ),
    (1, 'balanced', 'forward'),
    (1, 'balanced', 'backward'),
  ]
  for row in rows:
    assert row['ms'] > 0
    assert row['ratio'] == row['ms'] / row['dense_ms']
  assert len(moe_cost.table(rows).splitlines()) == 1 + len(rows)


def test_dense_layer_does_the_work_of_one_expert():
  config = config_lib.ModelConfig(
    d_model=D, d_expert=D, d_router=2, num_experts=E, init_std=0.5
  )
  layer = moe_cost.ExpertLayer(config)
  keys = jax.random.split(jax.random.key(0))
  h_BLD = jax.random.normal(keys[0], (1, T, D))
  state_BLR = jax.random.normal(keys[1], (1, T, 2))
  forced_BL = moe_cost.force('one expert', T, E)
  params = nnx.to_pure_dict(nnx.state(layer.experts))
  first = {name: array[0] for name, array in params.items()}
  y_BLD = moe_cost.dense_layer(first, h_BLD)
  p_BL = layer.router(h_BLD, state_BLR).probs[..., 0]
  np.testing.assert_allclose(
    layer(h_BLD, state_BLR, forced_BL), y_BLD * p_BL[..., None], rtol=1e-5
  )


@pytest.mark.parametrize(
  'routing, counts',
  [('balanced', [8, 8, 8]), ('one expert', [24, 0, 0]), ('fresh', [0, 0, 0])],
)
def test_routings_send_tokens_where_they_say(routing, counts):
  forced_BL = np.asarray(moe_cost.force(routing, T, E))
  assert [int((forced_BL == e).sum()) for e in range(E)] == counts
