# SPDX-License-Identifier: Apache-2.0
"""The conformance kit still holds what transformers computes."""

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import transformers

from tests.golden import make_conformance
from zaya_jax.convert import conformance


@pytest.fixture(scope='module')
def model():
  folder = make_conformance.KIT / 'model'
  model = transformers.ZayaForCausalLM.from_pretrained(
    folder, attn_implementation='eager'
  )
  # from_pretrained sets the bias of the skip class to -1 again.
  weights = safetensors.torch.load_file(folder / 'model.safetensors')
  for name, buffer in model.named_buffers():
    if name.endswith('balancing_biases'):
      buffer.copy_(weights[name])
  return model.eval()


@pytest.fixture(scope='module')
def batch():
  file = make_conformance.KIT / 'inputs.safetensors'
  inputs = safetensors.numpy.load_file(file)
  return inputs['tokens'], inputs['mask']


@pytest.fixture(scope='module')
def outputs(model, batch):
  taps = make_conformance.forward(model, *batch)
  found = {name: value.numpy() for name, value in taps.items()}
  return found | {'decode.logits': make_conformance.decode(model, *batch)}


def test_transformers_agrees_with_every_tensor_of_the_kit(outputs):
  report = conformance.check(outputs)
  assert report.agrees, report.hint
  assert len(report.names('agrees')) == len(report.rows) == 76


def test_one_wrong_value_is_noticed(outputs):
  wrong = np.array(outputs['layers.2.attn.v'])
  wrong[1, 7, 1, 3] += 1e-2
  report = conformance.check(outputs | {'layers.2.attn.v': wrong})
  assert report.first.name == 'layers.2.attn.v'


def test_a_bias_that_was_not_loaded_is_named(model, batch, monkeypatch):
  gate = model.model.layers[0].mlp.gate
  monkeypatch.setattr(gate, 'balancing_biases', gate.balancing_biases.clone())
  gate.balancing_biases[-1] = -1.0
  taps = make_conformance.forward(model, *batch)
  report = conformance.check({k: v.numpy() for k, v in taps.items()})
  assert report.first.name == 'layers.0.router.choice'
  assert 'from_pretrained' in report.hint
