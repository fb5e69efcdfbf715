# SPDX-License-Identifier: Apache-2.0
"""What goes in comes out; the folder is whole or not there."""

import itertools
import json
import pathlib
import shutil
import tracemalloc

import jax
import ml_dtypes
import numpy as np
import pytest

from pipelines import tokenizer as tokenizer_lib
from tests.support import bits, folders, legacy, quick, runs, tiny
from zaya_jax import config as config_lib
from zaya_jax.checkpoint import errors as checkpoint_errors
from zaya_jax.checkpoint.reading import finder
from zaya_jax.convert import exporter, importer
from zaya_jax.hub import config as hub_config
from zaya_jax.hub import files as hub_files
from zaya_jax.hub import folder as hub_folder
from zaya_jax.hub import names as hub_names
from zaya_jax.hub.tensors import errors, shards

MODEL = tiny.config(vocab_size=300, num_layers=3)
FLOAT32, BFLOAT16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)


def export(source, output, **settings) -> pathlib.Path:
  exporter.main(
    config_lib.Config(
      mode='export',
      source=str(source),
      output=str(output),
      export=config_lib.ExportConfig(**settings),
    )
  )
  return output


def import_folder(source, output) -> pathlib.Path:
  importer.main(
    config_lib.Config(mode='import', source=str(source), output=str(output))
  )
  return output


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  return runs.save(tmp_path_factory.mktemp('runs') / 'run', MODEL)


def native_folder(folder, model, dtype=FLOAT32, bias=FLOAT32) -> pathlib.Path:
  """A native folder by hand, the balancing bias of another type."""
  tables = zip(
    (hub_names.PARAMS, hub_names.BUFFERS), tiny.arrays(model), strict=True
  )
  values = {
    name: value.astype(bias if 'balancing' in name else dtype)
    for rows, tree in tables
    for name, value in folders.export(rows, tree)
  }
  given = hub_config.to_hf(model, 'native') | {'max_position_embeddings': 77}
  legacy.write(folder, given, values)
  return folder


KINDS = ['native', *(case.name for case in legacy.CASES)]
# Each kind once, each type whole and in shards.
CYCLE = [(FLOAT32, False), (BFLOAT16, True), (FLOAT32, True), (BFLOAT16, False)]
QUICK = [(kind, *CYCLE[i % 4]) for i, kind in enumerate(KINDS)]


@pytest.mark.parametrize(
  'case',
  quick.only(
    itertools.product(KINDS, (FLOAT32, BFLOAT16), (False, True)), *QUICK
  ),
  ids=lambda case: '-'.join(map(str, case)),
)
def test_import_then_export_gives_the_same_bits(tmp_path, monkeypatch, case):
  kind, dtype, sharded = case
  source = tmp_path / 'source'
  if kind == 'native':
    model = tiny.config(sliding_window=4, sliding_layers=(1,), head_bias=True)
    native_folder(source, model, dtype)
  else:
    case = next(case for case in legacy.CASES if case.name == kind)
    values = legacy.tensors(case)
    kept = ('balancing_biases',)
    cast = {
      name: value if name.endswith(kept) else value.astype(dtype)
      for name, value in values.items()
    }
    legacy.write(source, legacy.config(case), cast)
  if sharded:
    monkeypatch.setattr(shards, 'SHARD_BYTES', 4000)
  run = import_folder(source, tmp_path / 'run')
  layout = 'native' if kind == 'native' else 'legacy'
  found = export(run, tmp_path / 'out', layout=layout)
  bits.assert_same(bits.read(found), bits.read(source))
  files = list(found.glob('*.safetensors'))
  assert (len(files) > 2) == sharded
  before, after = (
    json.loads((folder / 'config.json').read_text())
    for folder in (source, found)
  )
  assert {key: after.get(key) for key in before} == before


@pytest.mark.parametrize('case', legacy.CASES, ids=lambda case: case.name)
def test_layouts_are_converted_without_a_run(tmp_path, case):
  source = pathlib.Path(
    legacy.write(tmp_path / 'a', legacy.config(case), legacy.tensors(case))
  )
  native = export(source, tmp_path / 'b')
  assert not bits.read(native).keys() & {'model.final_norm.weight'}
  settings = json.loads((native / 'config.json').read_text())
  assert settings['num_hidden_layers'] == case.layers
  assert settings['max_position_embeddings'] == 4096
  assert (settings['eos_token_id'], settings['bos_token_id']) == (1, 2)
  again = export(native, tmp_path / 'c', layout='legacy')
  bits.assert_same(bits.read(again), bits.read(source))


def test_run_is_read_back(tmp_path, run):
  wanted = tiny.arrays(MODEL)
  wanted[0]['layers']['router']['eda'] = (
    wanted[0]['layers']['router']['eda'].at[0].set(0.0)  # It has no tensor.
  )
  for layout in ('native', 'legacy'):
    folder = str(export(run, tmp_path / layout, layout=layout))
    config = hub_folder.read_config(folder)
    found = hub_folder.read_params(folder, config)
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


def test_bfloat16_is_rounded_but_for_the_balancing_bias(tmp_path, run):
  found = bits.read(export(run, tmp_path / 'out', dtype='bfloat16'))
  exact = bits.read(export(run, tmp_path / 'exact'))
  for name, value in found.items():
    wanted = FLOAT32 if 'balancing_biases' in name else BFLOAT16
    assert value.dtype == wanted
    np.testing.assert_array_equal(value, exact[name].astype(wanted))
  settings = json.loads((tmp_path / 'out' / 'config.json').read_text())
  assert settings['dtype'] == 'bfloat16'


def test_tensors_of_two_types_are_aligned(tmp_path, run):
  """Torch refuses a float32 that starts between two multiples of four."""
  file = export(run, tmp_path / 'out', dtype='bfloat16') / 'model.safetensors'
  raw = file.read_bytes()
  length = int.from_bytes(raw[:8], 'little')
  assert length % 8 == 0
  header = json.loads(raw[8 : 8 + length])
  size = {'F32': 4, 'BF16': 2}
  for name, entry in header.items():
    if name != '__metadata__':
      assert entry['data_offsets'][0] % size[entry['dtype']] == 0, name


def test_settings_name_every_key_that_transformers_knows(tmp_path, run):
  folder = export(run, tmp_path / 'out')
  found = json.loads((folder / 'config.json').read_text())
  known = """vocab_size hidden_size num_hidden_layers num_attention_heads
    num_key_value_heads hidden_act max_position_embeddings initializer_range
    rms_norm_eps use_cache tie_word_embeddings rope_parameters sliding_window
    attention_dropout moe_intermediate_size num_experts_per_tok num_experts
    layer_types pad_token_id bos_token_id eos_token_id head_dim attention_bias
    lm_head_bias router_hidden_size cca_time0 cca_time1"""
  assert found.keys() == {
    *known.split(), 'architectures', 'model_type', 'dtype'
  }  # fmt: skip
  assert found['architectures'] == ['ZayaForCausalLM']
  assert found['max_position_embeddings'] == 64
  assert [found[f'{x}_token_id'] for x in ('pad', 'bos', 'eos')] == [
    256, 257, 258
  ]  # fmt: skip
  generation = json.loads((folder / 'generation_config.json').read_text())
  assert generation['eos_token_id'] == [258, 256, 257]
  assert generation['suppress_tokens'] == list(range(259, 300))


def test_tokenizer_is_written(tmp_path, run):
  folder = export(run, tmp_path / 'out')
  again = tokenizer_lib.load(str(folder))
  assert again.special_ids == (256, 257, 258)
  assert again.encode('aé').tolist() == [0x61, 0xC3, 0xA9]
  config = json.loads((folder / 'tokenizer_config.json').read_text())
  assert config['bos_token'] == '<bos>'
  assert config['split_special_tokens'] and config['padding_side'] == 'left'


def test_model_card_tells_of_training_and_not_of_paths(tmp_path, run):
  text = (export(run, tmp_path / 'out') / 'README.md').read_text()
  count = sum(leaf.size for leaf in jax.tree.leaves(tiny.arrays(MODEL)[0]))
  count -= MODEL.d_router  # The unused first vector.
  for part in (f'{count:,} parameters', '| steps | 70 |', '12,345', '2.2500'):
    assert part in text
  assert '--model.num_layers=3' in text and 'from_pretrained' in text
  assert 'secret' not in text and str(run) not in text


def test_files_of_an_import_come_back(tmp_path):
  source = native_folder(tmp_path / 'source', MODEL)
  content = {
    'tokenizer.json': tokenizer_lib.load('bytes').to_json(),
    'tokenizer_config.json': b'{"bos_token": "<bos>", "x":  1}',
    'chat_template.jinja': b'{{ messages }}',
    'generation_config.json': b'{"eos_token_id": [1, 258]}',
  }
  for name, data in content.items():
    (source / name).write_bytes(data)
  run = import_folder(source, tmp_path / 'run')
  for layout in ('native', 'legacy'):
    for start in (source, run):
      found = export(start, tmp_path / f'{layout}_{start.name}', layout=layout)
      for name, data in content.items():
        assert (found / name).read_bytes() == data
      settings = json.loads((found / 'config.json').read_text())
      assert settings['max_position_embeddings'] == 77
  assert 'not trained any further' in (found / 'README.md').read_text()


def test_checkpoint_without_its_tokenizer_is_exported(tmp_path, run, capsys):
  alone = tmp_path / 'alone' / 'checkpoints' / '70'
  shutil.copytree(finder.resolve(str(run)), alone)
  folder = export(alone, tmp_path / 'bytes')
  assert (folder / 'tokenizer.json').exists()  # Bytes need no file.
  bpe = tokenizer_lib.train_bpe(['return return'], 270)
  (tmp_path / 'tok').mkdir()
  bpe.save(tmp_path / 'tok')
  other = runs.save(tmp_path / 'other', MODEL, str(tmp_path / 'tok'))
  folder = export(other, tmp_path / 'none')
  assert 'has no tokenizer' in capsys.readouterr().out
  assert not (folder / 'tokenizer.json').exists()


def test_router_without_skip_class_is_refused_or_legacy(tmp_path):
  run = runs.save(tmp_path / 'run', tiny.config(skip='off', vocab_size=300))
  with pytest.raises(config_lib.UsageError, match='--model.skip=off'):
    export(run, tmp_path / 'native')
  assert not list(tmp_path.glob('native*'))
  folder = export(run, tmp_path / 'legacy', layout='legacy')
  assert hub_folder.read_config(str(folder)).skip == 'off'


@pytest.mark.parametrize(
  ('skip', 'layout', 'told'),
  [
    ('identity', 'native', True),
    ('zero', 'native', False),
    ('zero', 'legacy', True),
    ('identity', 'legacy', False),
  ],
)
def test_another_skip_class_is_told(tmp_path, capsys, skip, layout, told):
  run = runs.save(tmp_path / 'run', tiny.config(skip=skip, vocab_size=300))
  folder = export(run, tmp_path / 'out', layout=layout)
  assert (f'--model.skip={skip}, but' in capsys.readouterr().out) == told
  assert (
    'the skip class otherwise' in (folder / 'README.md').read_text()
  ) == told
  settings = json.loads((folder / 'config.json').read_text())
  assert settings.get('zaya_jax_skip') == (skip if told else None)
  hub_folder.read_config(str(folder))


def test_bias_that_transformers_forgets_is_told(tmp_path, run, capsys):
  export(run, tmp_path / 'tiny')  # Its biases are random.
  assert 'sets the balancing bias' in capsys.readouterr().out
  case = legacy.CASES[0]
  legacy.write(tmp_path / 'a', legacy.config(case), legacy.tensors(case))
  export(tmp_path / 'a', tmp_path / 'b')
  told = capsys.readouterr().out
  assert 'sets the balancing bias' not in told
  assert '--model.skip' not in told  # No token can choose to skip.


def test_folders_in_use_are_refused(tmp_path, run):
  used = tmp_path / 'used'
  used.mkdir()
  (used / 'mine').touch()
  with pytest.raises(config_lib.UsageError, match='exists already'):
    export(run, used)
  (used / 'mine').unlink()
  export(run, used)  # Empty is as good as new.
  (tmp_path / 'new.partial').mkdir()
  with pytest.raises(checkpoint_errors.CheckpointError, match='is in the way'):
    export(run, tmp_path / 'new')
  assert (tmp_path / 'new.partial').exists()


def test_full_disk_is_told_before_anything_is_written(
  tmp_path, run, monkeypatch
):
  whole = export(run, tmp_path / 'whole')
  size = sum(file.stat().st_size for file in whole.iterdir())
  usage = shutil.disk_usage(tmp_path)
  for free, fits in ((size - 1, False), (size + 2**18, True)):
    known = usage._replace(free=free)
    monkeypatch.setattr(shutil, 'disk_usage', lambda path, known=known: known)
    if fits:
      export(run, tmp_path / 'out')
      continue
    with pytest.raises(errors.FolderError, match=f'{free:,} are free') as found:
      export(run, tmp_path / 'out')
    assert found.value.exit_code == 3
    assert [path.name for path in tmp_path.iterdir()] == ['whole']


def test_failure_half_way_leaves_nothing(tmp_path, run, monkeypatch):
  write = shards.write_file

  def fail(path, tensors):
    write(path, tensors[:2])
    raise OSError(28, 'No space left on device', path)

  monkeypatch.setattr(shards, 'write_file', fail)
  with pytest.raises(errors.FolderError, match='No space left'):
    export(run, tmp_path / 'out')
  assert not list(tmp_path.iterdir())


def test_one_tensor_at_a_time_is_in_memory(tmp_path):
  """The peak is that of the largest tensors, not that of all of them."""
  size, count = 2**18, 40
  tensors = [
    shards.Tensor(
      f't{i}', (size,), FLOAT32, lambda i=i: np.full(size, i, np.float32)
    )
    for i in range(count)
  ]
  tracemalloc.start()
  shards.write(str(tmp_path), tensors, 10 * size * 4)
  peak = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert peak < 3 * size * 4
  index = json.loads((tmp_path / 'model.safetensors.index.json').read_text())
  assert index['metadata']['total_size'] == count * size * 4
  assert len(set(index['weight_map'].values())) == 4
  assert index['weight_map']['t39'] == 'model-00004-of-00004.safetensors'
  found = bits.read(tmp_path)
  assert all((found[f't{i}'] == i).all() for i in range(count))


def test_defaults_without_a_tokenizer():
  found = hub_files.defaults(None, 8)
  assert found['eos_token_id'] is None and found['pad_token_id'] is None
