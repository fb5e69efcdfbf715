# SPDX-License-Identifier: Apache-2.0
"""Folders of the first release give what its own order of sub-layers gives."""

import dataclasses

import numpy as np
import pytest

import zaya_jax
from tests.support import legacy
from tests.support.reference import legacy_numpy
from zaya_jax.hub import config as hub_config
from zaya_jax.hub.tensors import errors

LOGITS = 1e-5  # Of the spread; float32 noise is below 3e-6 here.
CAUGHT = 100 * LOGITS
TIE = 1e-5  # Of probability: below, float32 noise could choose the expert.
REACHED = 0.2  # A bias of the skip class with which tokens choose it.


def error(tmp_path, case, change=None, identity=True):
  """Largest difference of our logits, as a share of the spread of theirs.

  Args:
    tmp_path: where the folder is written.
    case: the model.
    change: (config, tensors) -> what is written instead of them.
    identity: what their skip class does.
  """
  given, values = legacy.config(case), legacy.tensors(case)
  tokens = np.random.default_rng(case.seed).integers(3, case.vocab, 24)
  wanted, margin = legacy_numpy.forward(case.settings(identity), values, tokens)
  assert margin >= TIE
  if change:
    given, values = change(dict(given), dict(values))
  folder = legacy.write(tmp_path / 'folder', given, values)
  found = np.asarray(zaya_jax.load(folder)(tokens[None]))
  return np.abs(found[0] - wanted).max() / np.ptp(wanted)


@pytest.mark.parametrize('case', legacy.CASES, ids=lambda case: case.name)
def test_logits_agree_with_the_order_of_the_first_release(tmp_path, case):
  assert error(tmp_path, case) <= LOGITS


@pytest.mark.parametrize('case', legacy.CASES, ids=lambda case: case.name)
def test_skip_class_passes_its_input_as_in_that_code(tmp_path, case):
  case = dataclasses.replace(case, skip_bias=REACHED)
  assert error(tmp_path, case) <= LOGITS
  assert error(tmp_path, case, identity=False) >= CAUGHT


def one_window(given, values):
  """A window that no list gives to some layers."""
  without = {k: v for k, v in given.items() if not k.startswith('swa_')}
  return without | {'sliding_window': 5}, values


def test_window_without_a_list_is_that_of_every_layer(tmp_path):
  # As in that code: of the base of the other layers, the token itself counted.
  case = dataclasses.replace(legacy.CASES[0], windows={0: 4, 2: 4, 4: 4})
  assert error(tmp_path, case, one_window) <= LOGITS


def test_window_beside_those_of_some_layers_is_refused():
  given = legacy.config(legacy.CASES[2]) | {'sliding_window': 5}
  with pytest.raises(errors.FolderError, match='sliding_window is 5 beside'):
    hub_config.translate('config.json', given)


def test_null_is_as_if_the_key_were_absent():
  for case in legacy.CASES:
    given = legacy.config(case)
    del given['model_type']
    for key in given:
      absent = {k: v for k, v in given.items() if k != key}
      nothing = given | {key: None}
      assert meaning(nothing) == meaning(absent), key


def meaning(given):
  """The model of a `config.json`, or why it has none; and what is noted."""
  given = {'model_type': 'zaya', **given}
  try:
    model = hub_config.translate('config.json', given)
  except ValueError as error:
    return str(error)
  return model, hub_config.notes(given)


def swap(first, second):
  """Exchanges the parts of names."""

  def change(given, values):
    found = {}
    for name in values:
      other = name.replace(first, '\0').replace(second, first)
      other = other.replace('\0', second)
      found[name] = values.get(other, values[name])  # Sub-layer 0 has one side.
    return given, found

  return change


def shift_residual_scales(given, values):
  """Takes each sub-layer's scales for those in front of the one after it."""
  count = given['num_hidden_layers']
  order = [f'model.layers.{i}.' for i in range(1, count)] + ['model.']
  found = dict(values)
  for target, source in zip(order, order[1:] + order[:1], strict=True):
    for name in values:
      if name.startswith(target + 'res_scale.'):
        found[name] = values[source + name.removeprefix(target)]
  return given, found


def swap_halves(given, values):
  return given, {
    name: np.roll(value, len(value) // 2, axis=0)
    if 'linear_fc1' in name
    else value
    for name, value in values.items()
  }


def reverse_taps(given, values):
  return given, {
    name: value[..., ::-1] if 'conv_qk' in name and value.ndim == 3 else value
    for name, value in values.items()
  }


def rotate_experts(given, values):
  last = given['num_experts']
  name_of = lambda name, e: name.replace(
    f'local_experts.{e}.', f'local_experts.{(e + 1) % last}.'
  )
  found = {}
  for name, value in values.items():
    _, _, rest = name.partition('local_experts.')
    found[name_of(name, int(rest.partition('.')[0])) if rest else name] = value
  return given, found


def another(key, value):
  return lambda given, values: (given | {key: value}, values)


WRONG = {
  'current_and_delayed_values': swap('val_proj1', 'val_proj2'),
  'steps_of_the_router': swap('router_mlp.0', 'router_mlp.2'),
  'branch_and_residual': swap('hidden_states_scale', 'residual_scale'),
  'norms_of_neighbours': swap('layers.2.input_norm', 'layers.3.input_norm'),
  'attention_of_other_layers': swap('layers.2.self_attn', 'layers.4.self_attn'),
  'residual_scales_one_too_far': shift_residual_scales,
  'gate_for_up': swap_halves,
  'taps_in_reverse': reverse_taps,
  'next_expert': rotate_experts,
  'window_one_longer': another('swa_layers', [5, 0, 0, 0, 5, 0, 0, 0]),
  'window_one_shorter': another('swa_layers', [3, 0, 0, 0, 3, 0, 0, 0]),
  'window_in_another_layer': another('swa_layers', [0, 0, 4, 0, 4, 0, 0, 0]),
  'base_of_sliding_layers': another('swa_rotary_base', 1e4),
  'base_of_other_layers': another('rope_theta', 500.0),
  'norm_epsilon': another('norm_epsilon', 1e-2),
  'rotated_share': another('partial_rotary_factor', 1.0),
}


@pytest.mark.parametrize('name', WRONG)
def test_wrong_reading_is_caught(tmp_path, name):
  case = next(c for c in legacy.CASES if c.name == 'windows_and_biases')
  assert error(tmp_path, case, WRONG[name]) >= CAUGHT
