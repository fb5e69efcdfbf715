# SPDX-License-Identifier: Apache-2.0
"""The kit agrees with our model and with NumPy, and names what is wrong.

The mutants are `tests/support/reference/zaya_numpy.py` with one formula
changed, and some of our own model.
"""

import dataclasses
import json
import pathlib
import re

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from tests.support.reference import mutants, steps, zaya_numpy
from zaya_jax import config as config_lib
from zaya_jax.convert import conformance, conformance_mode
from zaya_jax.hub import aside
from zaya_jax.hub import folder as hub_folder
from zaya_jax.hub.tensors import errors
from zaya_jax.inference import activations

KIT = conformance.KIT
INPUTS = safetensors.numpy.load_file(KIT / 'inputs.safetensors')
BATCH = (INPUTS['tokens'], INPUTS['mask'])
EXPECTED = safetensors.numpy.load_file(KIT / 'expected.safetensors')


@pytest.fixture(scope='module')
def model():
  folder = str(KIT / 'model')
  config = dataclasses.replace(hub_folder.read_config(folder), dtype='float32')
  return config, *hub_folder.read_params(folder, config)


@pytest.fixture
def right():
  """The expected values, as a right port gives them, with zeros at padding."""
  return {name: _filled(value) for name, value in EXPECTED.items()}


def _filled(value):
  return np.where(value == value, value, 0).astype(value.dtype)


@pytest.mark.long
def test_a_rounded_model_is_measured(capsys):
  config = config_lib.Config(mode='conform', quant='int8')
  assert conformance_mode.main(config) == 0
  out = capsys.readouterr()
  found = json.loads(out.out)
  assert 'layers.0.attn.q_proj' in found['differing']
  assert 'layers.0.attn.norm' not in found['differing']  # Before any matrix.
  assert found['hint'] == 'The model was rounded: int8 (experts, attention).'


def test_our_model_agrees_and_so_does_the_command(capsys):
  assert conformance_mode.main(config_lib.Config(mode='conform')) == 0
  out = capsys.readouterr()
  found = json.loads(out.out)
  assert found['agrees'] and found['agreeing'] == 67
  assert {name.split('.', 2)[2] for name in found['not_checked']} == {
    'attn.conv_depthwise',  # Both convolutions are one.
    'attn.heads',
    'router.logits',
  }
  assert '67 of 76 agree, none differs.' in out.err


def test_numpy_agrees_down_to_both_convolutions(model):
  report = conformance.check(steps.outputs(zaya_numpy, *model, *BATCH))
  assert report.agrees, report.hint
  # All but the router's projection before mixing, and decoding.
  assert len(report.names('agrees')) == 72


def test_kit_is_small_and_complete():
  about = json.loads((KIT / 'manifest.json').read_text())
  files = [file for file in KIT.rglob('*') if file.is_file()]
  assert sum(file.stat().st_size for file in files) < 1_000_000
  assert [entry['name'] for entry in about['tensors']][::75] == [
    'embed',
    'decode.logits',
  ]
  for entry in about['tensors']:
    value = EXPECTED[entry['name']]
    assert (list(value.shape), str(value.dtype)) == (
      entry['shape'],
      entry['dtype'],
    )
  assert len(about['tensors']) == len(EXPECTED)


def test_page_lists_every_name():
  page = pathlib.Path(__file__).resolve().parents[3] / 'docs' / 'conformance.md'
  named = set(re.findall(r'^\| `([\w.]+)`', page.read_text(), re.MULTILINE))
  wanted = {re.sub(r'layers\.\d', 'layers.N', name) for name in EXPECTED}
  assert wanted <= named


# What is changed in the reference: the first submodule that differs then, and
# words of the mistake that is recognized.
MUTANTS = {
  'scale_before_bias': (
    [
      (
        "(p['embed'][tokens] + p['input_bias']) * p['input_scale']",
        "p['embed'][tokens] * p['input_scale'] + p['input_bias']",
      )
    ],
    'embed',
    'x * s + b in place of',
  ),
  'norm_epsilon': (
    [('(-1, keepdims=True) + eps)', '(-1, keepdims=True) + 1e-6)')],
    'layers.0.attn.norm',
    'norm epsilon 1e-06',
  ),
  'own_padding_of_each_convolution': (
    [('u_TGC = u_TF.resh', 'u_TF[:1] = 0\n  u_TGC = u_TF.resh')],
    'layers.0.attn.conv_depthwise',
    'pad by 2 zeros once',
  ),
  'taps_in_reverse': (
    [("(w['conv_depthwise'])", "(w['conv_depthwise'][::-1])")],
    'layers.0.attn.conv_depthwise',
    'taps in reverse',
  ),
  'channels_swapped': (
    [('LGI,GIO->LGO', 'LGI,GOI->LGO')],
    'layers.0.attn.conv_grouped',
    'input and output channels swapped',
  ),
  'keys_tiled': (
    [('[head * K // H for', '[head % K for')],
    'layers.0.attn.q_mean',
    'paired with key i % K',
  ),
  'no_mean_path': (
    [('_unit(mixed_LHC[:, :H] + mean_q_LHC)', '_unit(mixed_LHC[:, :H])')],
    'layers.0.attn.q_norm',
    'the mean path is missing',
  ),
  'exponential_temperature': (
    [("* w['temperature'][:, None]", "* np.exp(w['temperature'])[:, None]")],
    'layers.0.attn.k_norm',
    'exp(T) in place of T',
  ),
  'interleaved_rotation': (
    [
      (
        'np.split(x_LHC, [d_rope // 2, d_rope], axis=-1)',
        'x_LHC[..., :d_rope:2], x_LHC[..., 1:d_rope:2], x_LHC[..., d_rope:]',
      ),
      (
        'np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1)',
        'np.concatenate([np.stack([a * cos - b * sin, b * cos + a * sin], -1)'
        '.reshape(*a.shape[:2], -1), rest], -1)',
      ),
    ],
    'layers.0.attn.q_rope',
    'interleaved pairs',
  ),
  'values_not_delayed': (
    [('[np.zeros_like(h_LD[:1]), h_LD[:-1]]', '[h_LD]')],
    'layers.0.attn.v',
    'is not delayed',
  ),
  'half_of_each_head_delayed': (
    [
      (
        'np.concatenate([current, delayed], -1).reshape(L, K, C)',
        'np.concatenate([x.reshape(L, K, -1) for x in (current, delayed)], -1)',
      )
    ],
    'layers.0.attn.v',
    'half of each head is delayed',
  ),
  'scores_not_scaled': (
    [('.T / math.sqrt(C)', '.T')],
    'layers.0.attn.heads',
    'not divided by sqrt(C)',
  ),
  'window_of_earlier_keys': (
    [('age_LL < config', 'age_LL <= config')],
    'layers.1.attn.heads',
    'the window counts earlier keys only',
  ),
  'merge_scale_before_bias': (
    [
      (
        "(branch_LD + w['branch_bias']) * w['branch_scale']",
        "branch_LD * w['branch_scale'] + w['branch_bias']",
      ),
      (
        "(x_LD + w['residual_bias']) * w['residual_scale']",
        "x_LD * w['residual_scale'] + w['residual_bias']",
      ),
    ],
    'layers.0.attn.merge',
    'x * s + b in place of',
  ),
  'scalar_eda': (
    [("w['eda'] * state_LR", "w['eda'].mean() * state_LR")],
    'layers.1.router.state',
    'it is a vector',
  ),
  'no_eda': (
    [("w['eda'] * state_LR", '0 * state_LR')],
    'layers.1.router.state',
    'EDA is missing',
  ),
  'tanh_gelu': (
    [
      (
        '(1 + _erf(x / math.sqrt(2)))',
        '(1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3)))',
      )
    ],
    'layers.0.router.logits',
    'GELU by tanh',
  ),
  'choice_without_bias': (
    [('biased_LE.argmax', 'prob_LE.argmax')],
    'layers.0.router.choice',
    'the balancing bias is not added',
  ),
  'weight_with_bias': (
    [('h_LD, prob_LE, choice_L)\n    x', 'h_LD, biased_LE, choice_L)\n    x')],
    'layers.0.router.weight',
    'the balancing bias is in the weight',
  ),
  'skip_is_identity': (
    [("config.skip == 'identity'", 'True')],
    'layers.0.moe.out',
    'skip passes p * h on',
  ),
  'gate_and_up_swapped': (
    [('gate_F, up_F = np', 'up_F, gate_F = np')],
    'layers.0.moe.out',
    'gate and up swapped',
  ),
}


@pytest.mark.parametrize('name', MUTANTS)
def test_first_wrong_submodule_and_its_mistake_are_named(model, name):
  changes, first, mistake = MUTANTS[name]
  found = steps.outputs(steps.mutant(*changes), *model, *BATCH)
  report = conformance.check(found)
  assert report.first.name == first
  assert 'values of a known mistake' in report.hint and mistake in report.hint


@pytest.mark.parametrize(
  ('patch', 'first', 'mistake'),
  [
    (mutants.pad_convolutions_separately, 'conv_grouped', 'on its own'),
    (mutants.softmax_without_the_skip_class, 'probs', 'without the skip class'),
  ],
)
def test_mutants_of_our_model_are_named(
  model, monkeypatch, patch, first, mistake
):
  patch(monkeypatch)
  report = conformance.check(activations.outputs(*model, *BATCH))
  assert report.first.name.startswith('layers.0.')
  assert report.first.name.endswith(first)
  assert mistake in report.hint


def test_every_known_mistake_is_recognized(right):
  about = json.loads((KIT / 'manifest.json').read_text())
  traps = safetensors.numpy.load_file(KIT / 'traps.safetensors')
  assert len(traps) > 100
  for where, wrong in traps.items():
    name, _, number = where.rpartition('/')
    (entry,) = (e for e in about['tensors'] if e['name'] == name)
    value = right[name].copy()
    value[0] = wrong
    report = conformance.check(right | {name: value})
    assert report.first.name == name
    mistakes = {entry['traps'][int(number)]}
    mistakes |= {  # Two mistakes may have the same values.
      entry['traps'][int(w.rpartition('/')[2])]
      for w, other in traps.items()
      if w.rpartition('/')[0] == name and np.allclose(other, wrong, atol=1e-5)
    }
    assert any(mistake in report.hint for mistake in mistakes), where


def test_a_callable_that_gives_only_logits(right):
  def port(tokens, mask):
    assert tokens.shape == mask.shape == (2, 12)
    return {'logits': right['logits']}

  assert conformance.check(port).agrees
  report = conformance.check(lambda tokens, mask: {'logits': -right['logits']})
  assert report.first.name == 'logits'
  assert len(report.names('not checked')) == 75
  assert 'Not checked just before it: embed' in report.hint


def test_only_the_padded_row(right):
  right['layers.0.attn.conv_grouped'][1] += 1
  report = conformance.check(right)
  assert report.first.name == 'layers.0.attn.conv_grouped'
  assert 'Only the row with padding differs' in report.hint


def test_first_row_alone_is_compared(right):
  rows = {name: value[:1] for name, value in right.items()}
  report = conformance.check(rows)
  assert report.agrees
  assert {row.note for row in report.rows} == {'first row only'}


def test_types_shapes_and_numbers(right):
  half = {n: v.astype(ml_dtypes.bfloat16) for n, v in right.items()}
  report = conformance.check(half)
  assert report.agrees and report.rows[-1].tolerance > 0.01
  # Its rounding alone is too much for float32.
  rounded = {n: v.astype(np.float32) for n, v in half.items()}
  report = conformance.check(rounded)
  assert report.first.name == 'embed' and 'TF32' in report.hint

  for wrong, note in (
    (right['logits'].swapaxes(1, 2), r'shape \[2, 64, 12\], expected \[2, 12'),
    (right['logits'].astype('U8'), 'type <U8, expected float32'),
    (np.full_like(right['logits'], np.nan), '1344 of 1344 values are NaN'),
  ):
    report = conformance.check({'logits': wrong})
    assert not report.agrees and re.match(note, report.first.note)
    assert report.summary()['first']['error'] is None


def test_files_and_folders(tmp_path, right, capsys):
  safetensors.numpy.save_file(right, tmp_path / 'a.safetensors')
  odd = {'my_embedding': np.zeros(3, np.float32)}
  safetensors.numpy.save_file(odd, tmp_path / 'b.safetensors')
  run = lambda path: conformance_mode.main(
    config_lib.Config(mode='conform', source=str(path))
  )
  assert run(tmp_path) == 0
  out = capsys.readouterr()
  assert json.loads(out.out)['unknown'] == ['my_embedding']
  assert 'unknown names: my_embedding' in out.err

  right['logits'] += 1
  (tmp_path / 'b.safetensors').unlink()
  safetensors.numpy.save_file(right, tmp_path / 'a.safetensors')
  assert run(tmp_path / 'a.safetensors') == 3
  out = capsys.readouterr()
  assert out.out.count('\n') == 1
  assert json.loads(out.out)['first']['name'] == 'logits'
  assert 'first difference: logits' in out.err


def test_unusable_sources_are_named(tmp_path, right):
  run = lambda path: conformance_mode.main(
    config_lib.Config(mode='conform', source=str(path))
  )
  with pytest.raises(config_lib.UsageError, match='no file or folder'):
    run(tmp_path / 'none')
  with pytest.raises(errors.FolderError, match='has no .*safetensors'):
    run(tmp_path)
  file = tmp_path / 'a.safetensors'
  safetensors.numpy.save_file(right, file)
  (tmp_path / 'b.safetensors').write_bytes(file.read_bytes())
  with pytest.raises(errors.FolderError, match='is in another file'):
    run(tmp_path)
  file.write_bytes(file.read_bytes()[:-1])
  with pytest.raises(errors.FolderError, match='cannot be read'):
    run(file)
  safetensors.numpy.save_file({'x': np.zeros(1)}, file)
  with pytest.raises(errors.FolderError, match='None of the names'):
    run(file)
  with pytest.raises(errors.FolderError, match='there are none'):
    conformance.check({})


def test_the_kit_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
  folder = tmp_path / 'kit'
  run = lambda **more: conformance_mode.main(
    config_lib.Config(mode='conform', output=str(folder), **more)
  )
  with pytest.raises(config_lib.UsageError, match='not both'):
    run(source='there')

  def fail(*_):
    raise OSError('no space')

  with monkeypatch.context() as patch:
    patch.setattr(aside.os, 'rename', fail)
    with pytest.raises(errors.FolderError, match='cannot be written: no space'):
      run()
  assert not list(tmp_path.iterdir())
  assert run() == 0
  names = {str(f.relative_to(folder)) for f in folder.rglob('*.*')}
  assert {'README.md', 'model/config.json', 'expected.safetensors'} <= names
  with pytest.raises(config_lib.UsageError, match='exists already'):
    run()
