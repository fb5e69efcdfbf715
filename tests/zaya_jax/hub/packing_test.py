# SPDX-License-Identifier: Apache-2.0
"""--quant: the same numbers at load time and in a folder, and what they do."""

import itertools
import json

import jax
import numpy as np
import pytest
import safetensors.numpy

import zaya_jax
from tests.support import close, quick, runs, tiny
from tests.zaya_jax.inference.decoding import network_test
from zaya_jax import config as config_lib
from zaya_jax import main
from zaya_jax.checkpoint import errors as checkpoint_errors
from zaya_jax.convert import exporter
from zaya_jax.hub import folder as hub_folder
from zaya_jax.hub import packing
from zaya_jax.hub.quantized import choice, rounding
from zaya_jax.hub.tensors import errors
from zaya_jax.inference import load as load_lib
from zaya_jax.model import packed

MODEL = tiny.config(
  vocab_size=300, d_model=48, d_expert=24, attention_bias=True
)
ALL = ('experts', 'attention', 'embedding')


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  return runs.save(tmp_path_factory.mktemp('runs') / 'run', MODEL)


def export(source, output, quant, targets=ALL, **settings):
  config = config_lib.Config(
    mode='export',
    source=str(source),
    output=str(output),
    quant=quant,
    quantization=config_lib.QuantConfig(targets=targets),
    export=config_lib.ExportConfig(**settings),
  )
  exporter.main(config)
  return output


def load(source, quant='none', targets=ALL):
  config = config_lib.Config(
    quant=quant, quantization=config_lib.QuantConfig(targets=targets)
  )
  return load_lib.load(str(source), '', choice.given(config))


def assert_same(found, expected):
  assert jax.tree.structure(found) == jax.tree.structure(expected)
  jax.tree.map(np.testing.assert_array_equal, found, expected)


def without_first_eda(model):
  """Parameters, but for a vector that no folder has and no model uses."""
  layers = model.params['layers']
  router = layers['router'] | {'eda': layers['router']['eda'][1:]}
  return model.params | {'layers': layers | {'router': router}}


@pytest.fixture(scope='module')
def loaded(run):
  return {kind: load(run, kind) for kind in ('none', 'int8', 'int4')}


@pytest.mark.parametrize('kind', ['int8', 'int4'])
def test_matrices_are_rounded_and_all_else_stays(loaded, kind):
  wide, few = (flat(loaded[k].params) for k in ('none', kind))
  rounded = {path for path, leaf in few.items() if packed.is_packed(leaf)}
  assert rounded == {
    'embed', 'layers/experts/gate_up', 'layers/experts/down',
    *(f'layers/attn/{n}' for n in ('q', 'k', 'v_current', 'v_delayed', 'out')),
  }  # fmt: skip
  for path, leaf in few.items():
    if path not in rounded:
      np.testing.assert_array_equal(leaf, wide[path])
      continue
    rows = np.asarray(wide[path])
    rows = rows if path == 'embed' else rows.swapaxes(-1, -2)
    pair = rounding.pack(rows, 'int8' if path == 'embed' else kind)
    for a, b in zip((leaf.values, leaf.scale), pair, strict=True):
      np.testing.assert_array_equal(a, b)


def flat(params):
  leaves = jax.tree_util.tree_leaves_with_path(params, is_leaf=packed.is_packed)
  return {'/'.join(key.key for key in path): leaf for path, leaf in leaves}


def test_targets_say_what_is_rounded(run):
  few = flat(load(run, 'int4', ('experts',)).params)
  rounded = {path for path, leaf in few.items() if packed.is_packed(leaf)}
  assert rounded == {'layers/experts/gate_up', 'layers/experts/down'}


@pytest.mark.parametrize('kind', quick.only(['int8', 'int4'], 'int4'))
def test_decoding_gives_the_logits_of_the_packed_model(loaded, kind):
  model = loaded[kind]
  tokens = np.random.default_rng(1).integers(0, 300, (2, network_test.LENGTH))
  mask = np.ones_like(tokens, bool)
  arrays = MODEL, model.params, model.buffers
  chunks = (8, 1, 1, 1)
  found = network_test.cached_logits(*arrays, tokens, mask, chunks)
  close.assert_close(found, np.asarray(model(tokens)), close.FLOAT32_DEEP)
  assert close.error(found, np.asarray(loaded['none'](tokens))) > 1e-3


@pytest.mark.parametrize(
  'case',
  quick.only(
    itertools.product(('int8', 'int4'), ('native', 'legacy')),
    ('int8', 'native'),
    ('int4', 'legacy'),
  ),
  ids='-'.join,
)
def test_a_folder_holds_what_loading_rounds(run, loaded, tmp_path, case):
  kind, layout = case
  folder = export(run, tmp_path / 'few', kind, layout=layout)
  model = load(folder)
  assert_same(without_first_eda(model), without_first_eda(loaded[kind]))
  assert_same(model.buffers, loaded[kind].buffers)
  # Who asks for wide parameters gets what these numbers mean.
  wide, _ = hub_folder.read_params(str(folder), model.config)
  expected = packed.whole(MODEL, model.params)
  assert_same(wide, expected)
  with pytest.raises(config_lib.UsageError, match='is quantized already'):
    load(folder, kind)
  card = (folder / 'README.md').read_text()
  assert f'{kind} (experts, attention, embedding)' in card
  wide = sum(leaf.size for leaf in jax.tree.leaves(loaded['none'].params))
  assert f'{wide - MODEL.d_router:,} parameters' in card  # No first EDA.


def test_a_folder_of_few_bits_is_exported_wide(run, tmp_path):
  few = export(run, tmp_path / 'few', 'int4')
  wide = export(few, tmp_path / 'wide', 'none')
  assert 'quantization_config' not in json.loads(
    (wide / 'config.json').read_text()
  )
  expected = packed.whole(MODEL, load(few).params)
  assert_same(load(wide).params, expected)


@pytest.mark.parametrize('lost', ['_scale', '_shape'])
def test_a_folder_without_scales_is_refused_by_name(
  run, tmp_path, lost, capsys
):
  folder = export(run, tmp_path / 'few', 'int4')
  file = folder / 'model.safetensors'
  tensors = safetensors.numpy.load_file(file)
  name = f'model.layers.1.mlp.experts.down_proj{lost}'
  del tensors[name]
  safetensors.numpy.save_file(tensors, file)
  words = ['--mode=generate', f'--source={folder}', '--prompt=A']
  assert main.main(['zaya_jax', *words]) == errors.FolderError.exit_code
  said = capsys.readouterr().err
  assert f'has no {name}' in said and 'Traceback' not in said


def test_what_weights_take_is_told(loaded):
  said = packing.note(loaded['int4'].decoder.weights)
  arrays = jax.tree.leaves(loaded['int4'].decoder.weights)
  size = sum(a.size * a.dtype.itemsize for a in arrays)
  assert f'take {size / 1e6:.1f} MB, ' in said
  assert packing.note(loaded['none'].decoder.weights) == ''


@pytest.mark.long
def test_commands_take_the_flag(run, tmp_path, capsys):
  source = export(run, tmp_path / 'wide', 'none')
  capsys.readouterr()
  (tmp_path / 'text.txt').write_text('A text to be scored, byte by byte. ' * 9)
  scores = {}
  for kind in ('none', 'int8', 'int4'):
    words = [
      '--mode=eval', f'--source={source}', f'--quant={kind}', '--json',
      f'--eval.text={tmp_path}/text.txt', '--data.seq_len=32',
    ]  # fmt: skip
    assert main.main(['zaya_jax', *words]) == 0
    scores[kind] = json.loads(capsys.readouterr().out)['bits_per_byte']
  apart = {kind: abs(scores[kind] - scores['none']) for kind in scores}
  assert 0 < apart['int8'] < apart['int4']
  assert apart['int8'] < 0.02 * scores['none']
  words = [
    '--mode=generate', f'--source={source}', '--quant=int8', '--prompt=A',
    '--generate.max_tokens=4',
  ]  # fmt: skip
  assert main.main(['zaya_jax', *words]) == 0
  assert 'bits each; in bfloat16 they' in capsys.readouterr().err


@pytest.mark.parametrize(
  ('words', 'said'),
  [
    (['--mode=train', '--run_dir=r'], '--mode=train without --lora.rank'),
    (['--mode=plan'], '--mode=plan without --lora.rank trains all'),
    (
      ['--mode=plan', '--lora.rank=2', '--mesh.fsdp=2'],
      '--mesh.fsdp=2 divides',
    ),
    (['--mode=bench', '--bench.op=experts'], '--mode=bench takes it as it is'),
    (['--mode=generate', '--source=.', '--quant.targets=router'], 'each once'),
    (['--mode=conform', '--source=.'], 'rounds our own model'),
  ],
)
def test_what_cannot_be_rounded_is_refused(words, said, capsys, tmp_path):
  assert main.main(['zaya_jax', '--quant=int8', *words]) == 2
  assert said in capsys.readouterr().err


def test_odd_widths_have_no_4_bits(tmp_path):
  model = tiny.config(vocab_size=300, d_expert=7)
  odd = runs.save(tmp_path / 'odd', model)
  with pytest.raises(config_lib.UsageError, match='7 inputs; use --quant=int8'):
    load(odd, 'int4')
  assert packed.is_packed(load(odd, 'int8').params['layers']['experts']['down'])


def test_python_names_a_kind(run):
  found = zaya_jax.load(str(run), quant='int4')
  experts = found.params['layers']['experts']
  assert packed.is_packed(experts['gate_up'])
  assert not packed.is_packed(found.params['embed'])
  # Programs are kept by model, and each kind of weights has its own.
  for kind in ('none', 'int8', 'int4', 'none'):
    assert zaya_jax.load(str(run), quant=kind).generate([[1, 2, 3]], 2)
  with pytest.raises(config_lib.UsageError, match='--quant=int3 must be one'):
    zaya_jax.load(str(run), quant='int3')


def test_nan_is_refused_before_it_is_rounded(tmp_path):
  def spoiled(model):
    params, buffers = tiny.arrays(model)
    experts = params['layers']['experts']
    experts['down'] = experts['down'].at[1, 2, 3, 4].set(np.nan)
    return params, buffers

  bad = runs.save(tmp_path / 'bad', MODEL, arrays=spoiled)
  with pytest.raises(checkpoint_errors.CheckpointError, match='experts/down'):
    load(bad, 'int8')
