# SPDX-License-Identifier: Apache-2.0
"""PEFT's format: each factor where `get_delta_weight` looks for it."""

import json

import numpy as np
import pytest
import safetensors.numpy

from tests.support import tiny
from zaya_jax import config as config_lib
from zaya_jax.hub.adapters import peft
from zaya_jax.hub.tensors import errors
from zaya_jax.inference import load as load_lib
from zaya_jax.model import shapes

MODEL = tiny.config()
LORA = config_lib.LoraConfig(rank=2, alpha=3.0)
EXPERTS = 'base_model.model.model.layers.1.mlp.experts.'


@pytest.fixture(scope='module')
def values():
  """Factors by path."""
  rng = np.random.default_rng(0)
  return {
    path: rng.normal(size=shape).astype(np.float32)
    for path, shape in shapes.adapters(MODEL, LORA).items()
  }


@pytest.fixture
def folder(tmp_path, values):
  leaves = {f'params/{path}': Layers(value) for path, value in values.items()}
  peft.write(str(tmp_path), LORA, leaves, 'somewhere/base')
  return tmp_path


class Layers:
  """As `lazy.Leaf`."""

  def __init__(self, value):
    self.shape, self._value = value.shape, value

  def __getitem__(self, index):
    return self._value[index]


def test_what_goes_out_comes_in(folder, values):
  lora, base = peft.read_settings(str(folder))
  assert (lora, base) == (LORA, 'somewhere/base')
  found = peft.read(str(folder), MODEL, lora)
  assert found.keys() == values.keys()
  for path in found:
    np.testing.assert_array_equal(found[path], values[path])


def delta(a, b, experts):
  """PEFT's, for an array [experts, out, in]."""
  a = a.reshape(experts, -1, a.shape[-1])
  b = b.reshape(b.shape[0], -1, experts)
  return 1.5 * np.einsum('ore,eri->eoi', b, a)


@pytest.mark.parametrize(
  'name, wrapper', [('gate_up', 'base_layer.'), ('down', '')]
)
def test_experts_are_where_peft_looks(folder, values, name, wrapper):
  found = safetensors.numpy.load_file(folder / peft.FILE)
  a, b = (found[f'{EXPERTS}{wrapper}lora_{x}.weight'] for x in 'AB')
  ours = [values[f'layers/experts/{name}/{x}'][1] for x in shapes.FACTORS]
  wanted = (1.5 * ours[0] @ ours[1]).swapaxes(1, 2)
  np.testing.assert_allclose(delta(a, b, MODEL.num_experts), wanted, atol=1e-5)
  # Ranks first in B, as experts first would be other numbers.
  wrong = b.reshape(b.shape[0], MODEL.num_experts, -1).swapaxes(1, 2)
  wrong = delta(a, wrong.reshape(b.shape), MODEL.num_experts)
  assert np.abs(wrong - wanted).max() > 0.1


def test_projection_is_where_peft_looks(folder, values):
  found = safetensors.numpy.load_file(folder / peft.FILE)
  name = 'base_model.model.model.layers.0.self_attn.qkv_proj.v_proj_delayed'
  a, b = (found[f'{name}.lora_{x}.weight'] for x in 'AB')
  ours = [values[f'layers/attn/v_delayed/{x}'][0] for x in shapes.FACTORS]
  np.testing.assert_allclose(b @ a, (ours[0] @ ours[1]).T, atol=1e-5)


@pytest.mark.parametrize(
  'key, value, rule',
  [
    ('use_dora', True, 'use_dora is True; only False is known'),
    ('peft_type', 'IA3', "only 'LORA' is known"),
    ('rank_pattern', {'q_proj': 4}, 'rank_pattern'),
    ('target_modules', ['q_proj'], 'all that --lora.targets=attention means'),
    ('r', None, 'both must be numbers'),
    ('r', 4, 'the adapter is of another model'),
    ('target_parameters', None, 'tensors that its adapter_config.json'),
  ],
)
def test_other_kind_is_refused(folder, key, value, rule):
  given = json.loads((folder / peft.CONFIG).read_text())
  (folder / peft.CONFIG).write_text(json.dumps(given | {key: value}))
  with pytest.raises(errors.FolderError, match=rule):
    peft.read(str(folder), MODEL, peft.read_settings(str(folder))[0])


def test_adapter_is_no_model(folder):
  with pytest.raises(errors.FolderError, match='--mode=import --source='):
    load_lib.load(str(folder))


def test_root_scaling_is_read(folder):
  given = json.loads((folder / peft.CONFIG).read_text()) | {'use_rslora': True}
  (folder / peft.CONFIG).write_text(json.dumps(given))
  lora, _ = peft.read_settings(str(folder))
  assert lora.scale == pytest.approx(3 / 2**0.5)
