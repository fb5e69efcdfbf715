# SPDX-License-Identifier: Apache-2.0
"""Settings to flags and back, and a sentence for everything that is wrong."""

import dataclasses
import pathlib
import typing

import pytest
from absl import flags as absl_flags

from ops import registry
from zaya_jax import config
from zaya_jax.config import fields, flags

CONFIGS = sorted(
  (pathlib.Path(__file__).parents[3] / 'configs').glob('*.flags')
)
SETTINGS = [
  s for _, _, settings in flags.sections(config.Config) for s in settings
]
parse, read_file = config.Config.parse, config.Config.from_flagfile


def _other(setting):
  """A value that is not the default, as text."""
  default = setting.field.default
  if typing.get_origin(setting.kind) is typing.Literal:
    return typing.get_args(setting.kind)[-1 if default != 'zero' else 0]
  if setting.kind is bool:
    return str(not default).lower()
  if setting.kind in (int, float):
    # Twice keeps what must divide; the rest accepts any positive number.
    return str(min(default * 2, setting.field.metadata['maximum'] or 1e9) or 1)
  return '1' if setting.kind == tuple[int, ...] else 'other words'


# What a flag needs beside it to be a valid run.
COMPANIONS = {
  'model.num_kv_heads': ['--model.num_heads=8'],
  'model.sliding_window': ['--model.sliding_layers=1'],
  'model.sliding_layers': ['--model.sliding_window=8'],
  'optim.schedule': ['--optim.decay_steps=3'],
  'aegis.spares': ['--aegis.nodes=a,b'],
}
VALUES = {
  'dpo.label_smoothing': '0.1',
  'dpo.nll_weight': '0.2',
  'plan.efficiency': '0.5',
  'distributed.process': '3',
  'checkpoint.fast': '/dev/shm/zaya@2',
  'eval.num_fewshot': '5',
  'data.train_tokenizer': '300',
  'tokens': '1.5M',
  'log.profile': '100:3',
  'lora.targets': 'experts',
  'quant.targets': 'experts',
}


@pytest.mark.parametrize('setting', SETTINGS, ids=lambda s: s.name)
def test_every_flag_is_read_and_written(setting):
  text = VALUES.get(setting.name) or _other(setting)
  if setting.kind is int:
    text = str(int(float(text)))
  read = parse([f'--{setting.name}={text}', *COMPANIONS.get(setting.name, [])])
  value = fields.value(read, setting.name)
  assert value != setting.field.default
  assert f'\n--{setting.name}=' in read.to_flagfile()
  (found,) = [
    d
    for d in config.Config().differences(read)
    if d.startswith(f'--{setting.name}: ')
  ]
  assert ' -> ' in found


def test_no_arguments_give_the_defaults():
  assert parse([]) == config.Config()


def test_global_flags_stay_as_they_are():
  before = set(absl_flags.FLAGS)
  parse(['--num_steps=3'])
  assert set(absl_flags.FLAGS) == before


@pytest.mark.parametrize(
  'args, expected',
  [
    (['--model.tie_embeddings'], True),
    (['--nomodel.tie_embeddings'], False),
    (['--model.tie_embeddings=false'], False),
    (['--model.tie_embeddings=False'], False),
    (['--model.tie_embeddings=TRUE'], True),
    (['--nomodel.tie_embeddings', '--model.tie_embeddings'], True),
  ],
)
def test_booleans(args, expected):
  assert parse(args).model.tie_embeddings is expected


def test_later_list_replaces_the_earlier():
  read = parse(['--data.dir=a,b@2', '--data.dir=c'])
  assert read.data.dir == ('c',)


def test_empty_list():
  assert parse(['--data.dir=a', '--data.dir=']).data.dir == ()


def test_value_as_a_word_of_its_own():
  assert parse(['--num_steps', '5', '--seed=2']).num_steps == 5


@pytest.mark.parametrize(
  'args, words',
  [
    (['--num_stepz=3'], ['--num_stepz', 'Did you mean --num_steps?']),
    (['--num_layers=3'], ['Did you mean --model.num_layers?']),
    (['--xqzy'], ['--xqzy is not a flag', '--help']),
    (['num_steps=3'], ["'num_steps=3' is not a flag", '--name=value']),
    (['--num_steps=3', 'word', '--seed=1'], ["'word' is not a flag"]),
    (['--num_steps=many'], ['--num_steps=many', 'a whole number']),
    (['--num_steps=2.5'], ['--num_steps=2.5', 'a whole number']),
    (['--optim.lr=fast'], ['--optim.lr=fast', 'a number']),
    (['--resume=perhaps'], ['--resume=perhaps', 'true or false']),
    (['--noresume=1'], ['--noresume=1']),
    (['--mode=trian'], ['--mode=trian', 'train, prepare']),
    (['--ops.cca=pallas'], ['--ops.cca=pallas is called --ops.cca=triton']),
    (['--ops.cca=mosaic'], ['--ops.cca=mosaic is called --ops.cca=hopper']),
    (['--ops.muon_momentum=mosaic'], ['must be one of auto, hip, xla']),
    (['--model.sliding_layers=a'], ['--model.sliding_layers=a']),
    (['--num_steps=-1'], ['--num_steps=-1', 'at least 0']),
    (['--model.num_kv_heads=3'], ['--model.num_kv_heads=3', 'divide']),
    (['--seed'], ['seed']),
    (['--flagfile=missing.flags'], ['missing.flags', 'No such file']),
    (['--flagfile='], ['--flagfile=']),
    (['--flagfile'], ['--flagfile']),
  ],
)
def test_wrong_arguments_give_one_sentence(args, words):
  with pytest.raises(config.UsageError) as caught:
    parse(args)
  message = str(caught.value)
  assert '\n' not in message
  assert all(word in message for word in words)


def _file(folder, text, name='a.flags'):
  path = folder / name
  path.write_bytes(text if isinstance(text, bytes) else text.encode())
  return str(path)


def test_flagfile_comments_blank_lines_and_indentation(tmp_path):
  path = _file(
    tmp_path,
    '# a comment\n\n// another\n  # indented\n  --num_steps=7  \n'
    '--optim.lr=1e-2\r\n',
  )
  read = read_file(path)
  assert (read.num_steps, read.optim.lr) == (7, 0.01)


def test_order_decides_between_flagfile_and_argument(tmp_path):
  path = _file(tmp_path, '--num_steps=7\n')
  assert parse([f'--flagfile={path}', '--num_steps=8']).num_steps == 8
  assert parse(['--num_steps=8', f'--flagfile={path}']).num_steps == 7
  assert parse(['--flagfile', path]).num_steps == 7


def test_flagfile_may_include_another(tmp_path):
  inner = _file(tmp_path, '--seed=3\n--num_steps=4\n', 'inner.flags')
  outer = _file(tmp_path, f'--flagfile={inner}\n--num_steps=5\n')
  read = read_file(outer)
  assert (read.seed, read.num_steps) == (3, 5)


def test_byte_order_mark_is_no_part_of_the_first_flag(tmp_path):
  path = _file(tmp_path, '--num_steps=7\n'.encode('utf-8-sig'))
  assert read_file(path).num_steps == 7


def test_flagfile_that_includes_itself_is_refused(tmp_path, capfd):
  outer, inner = tmp_path / 'a.flags', tmp_path / 'b.flags'
  outer.write_text(f'--seed=1\n--flagfile={inner}\n')
  inner.write_text(f'--flagfile={tmp_path}/./a.flags\n')
  with pytest.raises(config.UsageError) as caught:
    read_file(str(outer))
  assert str(caught.value) == (
    f'--flagfile={inner} includes {tmp_path}/./a.flags, which includes it; '
    'remove one of the two lines.'
  )
  assert capfd.readouterr() == ('', '')


def test_flagfile_that_is_included_twice_is_read_twice(tmp_path):
  inner = _file(tmp_path, '--seed=3\n', 'inner.flags')
  line = f'--flagfile={inner}\n'
  assert read_file(_file(tmp_path, f'{line}--seed=4\n{line}')).seed == 3


@pytest.mark.parametrize(
  'text, words',
  [
    ('num_steps=5\n', ["'num_steps=5' is not a flag", '--name=value']),
    ('--num_steps 5\n', ["'--num_steps 5'", '--name=value']),
    ('--num_steps=5 # five\n', ['comment', 'a line of its own']),
    ('--run_dir=here # there\n', ['comment', 'a line of its own']),
    ('--prompt="open\n', ['quoted']),
    ('--num_stepz=5\n', ['Did you mean --num_steps']),
    ('--flagfile=gone.flags\n', ['gone.flags', 'No such file']),
    ('--flagfile=\n', ['--flagfile= needs the path']),
    (b'--prompt=\xff\n', ['UTF-8']),
  ],
)
def test_wrong_flagfile_gives_one_sentence(tmp_path, text, words):
  with pytest.raises(config.UsageError) as caught:
    read_file(_file(tmp_path, text))
  message = str(caught.value)
  assert '\n' not in message
  assert all(word in message for word in words)


@pytest.mark.parametrize(
  'prompt',
  [
    '',
    'def f():\n  ',
    'one\ntwo',
    'one\r\ntwo',
    'a # b',
    '"quoted"',
    ' spaces ',
    'tab\t',
    'é\x00\u2028',
  ],
)
def test_any_text_survives_a_flagfile(tmp_path, prompt):
  text = config.Config(prompt=prompt).to_flagfile()
  read = read_file(_file(tmp_path, text))
  assert read.prompt == prompt
  assert read.to_flagfile() == text


def test_flagfile_of_a_run_from_before_a_flag_was_removed(tmp_path):
  path = _file(tmp_path, '--num_steps=7\n--ops.muon_apply=auto\n--seed=2\n')
  assert read_file(path) == parse(['--num_steps=7', '--seed=2'])
  with pytest.raises(config.UsageError, match='--ops.muon_apply is not a flag'):
    parse(['--ops.muon_apply=auto'])


def test_floats_keep_every_bit(tmp_path):
  optim = config.OptimConfig(lr=0.1 + 0.2, lr_final=0)
  text = config.Config(optim=optim).to_flagfile()
  assert read_file(_file(tmp_path, text)).optim == optim


def test_comma_inside_a_list_is_refused():
  data = config.DataConfig(dir=('a,b',))
  with pytest.raises(config.UsageError, match="--data.dir cannot hold 'a,b'"):
    config.Config(data=data).to_flagfile()


def test_flagfile_names_every_section():
  text = config.Config().to_flagfile()
  for f in dataclasses.fields(config.Config):
    if f.name in ('given', 'course'):  # No settings, but where they are from.
      continue
    title = {'serving': 'serve', 'quantization': 'quant'}.get(f.name, f.name)
    assert f'\n--{title}=' in text or f'\n# {title}: ' in text


def test_differences_of_one_section():
  before = config.Config()
  after = config.Config(
    num_steps=2, model=config.ModelConfig(d_model=512, skip='off')
  )
  assert before.differences(after, 'model') == [
    '--model.d_model: 256 -> 512',
    '--model.skip: zero -> off',
  ]
  assert before.differences(after)[0] == '--num_steps: 1000 -> 2'
  assert not after.differences(after)


def test_there_are_presets():
  assert {'small', 'zaya1_8b'} <= {path.stem for path in CONFIGS}


@pytest.mark.parametrize('path', CONFIGS, ids=lambda path: path.stem)
def test_preset_replays_to_the_byte(tmp_path, path):
  read = read_file(str(path))
  assert read.run_dir
  text = read.to_flagfile()
  again = read_file(_file(tmp_path, text))
  assert again == read
  assert again.to_flagfile() == text


@pytest.mark.parametrize('name', registry.FUNCTIONS)
def test_every_engine_can_be_named(name):
  choices = typing.get_args(typing.get_type_hints(config.OpsConfig)[name])
  engines = [engine.name for engine in registry.operation(name).engines]
  assert list(choices) == ['auto', *engines]
