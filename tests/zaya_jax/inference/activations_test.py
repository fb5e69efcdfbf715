# SPDX-License-Identifier: Apache-2.0
"""`zaya_jax.activations` and `plan_run`, as notebooks use them."""

import numpy as np

import zaya_jax
from tests.support import tiny
from tests.support.reference import zaya_numpy
from zaya_jax.inference import model as model_lib


def test_activations_are_those_of_the_model():
  config = tiny.config()
  params, buffers = tiny.arrays(config)
  model = model_lib.Model(
    config=config, params=params, buffers=buffers, tokenizer=None
  )
  tokens = np.random.default_rng(0).integers(0, 40, (2, 9))
  found = zaya_jax.activations(model, tokens)
  np.testing.assert_allclose(found['logits'], model(tokens), atol=1e-5)
  for row in (0, 1):
    want = zaya_numpy.forward(config, params, buffers, tokens[row])
    choice = [found[f'layers.{n}.router.choice'][row] for n in (0, 1)]
    np.testing.assert_array_equal(choice, want.choice)
  padded = np.concatenate([np.zeros((2, 3), int), tokens], axis=1)
  mask = np.arange(12)[None] >= 3
  masked = zaya_jax.activations(model, padded, np.repeat(mask, 2, axis=0))
  np.testing.assert_allclose(
    masked['logits'][:, 3:], found['logits'], atol=1e-5
  )


def test_plan_run_says_who_holds_what():
  config = zaya_jax.Config(
    model=tiny.config(num_experts=4),
    mesh=zaya_jax.MeshConfig(expert=4),
    plan=zaya_jax.PlanConfig(devices=8, chip='cpu'),
  )
  arrays = {a['name']: a for a in zaya_jax.plan_run(config)['arrays']}
  down = arrays['layers/experts/down']
  assert down['shape'] == (2, 4, 8, 16)
  assert down['spec'] == [None, 'expert', None, None]
  assert down['optimizer_spec'] == [None, 'expert', 'replica', None]
