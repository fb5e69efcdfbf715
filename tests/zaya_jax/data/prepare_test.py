# SPDX-License-Identifier: Apache-2.0
"""Where shards go and what the user is told to type next."""

import dataclasses
import json
import os

import pytest

from pipelines import errors
from tests.support import chats
from zaya_jax import config
from zaya_jax.data import prepare

TEXT = 'Every line is like the one before it.\n' * 100


def _config(folder, *, run_dir='', output='', **data):
  (folder / 'text.txt').write_text(TEXT)
  return config.Config(
    mode='prepare',
    run_dir=run_dir,
    output=output,
    data=config.DataConfig(
      input=str(folder / 'text.txt'), record_tokens=512, seq_len=128, **data
    ),
  )


def test_output_flag_comes_first(tmp_path, capsys):
  dirs = (str(tmp_path / 'b'),)
  prepare.main(_config(tmp_path, output=str(tmp_path / 'a'), dir=dirs))
  assert (tmp_path / 'a' / 'manifest.json').exists()
  assert not (tmp_path / 'b').exists()
  assert f'--data.dir={tmp_path / "a"}' in capsys.readouterr().out


def test_weight_of_a_folder_is_not_part_of_its_name(tmp_path):
  prepare.main(_config(tmp_path, dir=(f'{tmp_path / "b"}@2',)))
  assert (tmp_path / 'b' / 'manifest.json').exists()


def test_without_a_folder_the_run_directory_has_them(tmp_path):
  prepare.main(_config(tmp_path, run_dir=str(tmp_path / 'run')))
  assert (tmp_path / 'run' / 'data' / 'manifest.json').exists()


def test_flipped_bit_is_found_where_it_is_asked_for(tmp_path):
  settings = _config(tmp_path, output=str(tmp_path / 'a'), verify=True)
  prepare.main(settings)
  shard = next((tmp_path / 'a').glob('train-*.array_record'))
  before, content = shard.stat(), bytearray(shard.read_bytes())
  content[-1] ^= 1
  with open(shard, 'r+b') as file:  # The same file, as old as before.
    file.write(content)
  os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
  prepare.main(_config(tmp_path, output=str(tmp_path / 'a')))
  with pytest.raises(errors.DataError, match=f'{shard.name} differs'):
    prepare.main(settings)


def test_next_command_fits_the_shards(tmp_path, capsys):
  prepare.main(_config(tmp_path, output=str(tmp_path / 'a')))
  printed = capsys.readouterr().out
  assert '--data.record_tokens=512 --data.seq_len=128' in printed
  assert '--model.vocab_size' not in printed


def test_next_command_has_room_for_a_trained_tokenizer(tmp_path, capsys):
  words = ' '.join(f'word{i} line{i % 7}' for i in range(400))
  settings = _config(tmp_path, output=str(tmp_path / 'a'), train_tokenizer=330)
  (tmp_path / 'text.txt').write_text(words)
  prepare.main(settings)
  assert '--model.vocab_size=384' in capsys.readouterr().out


def test_conversations_keep_to_the_windows_of_training(tmp_path):
  (tmp_path / 'chats.jsonl').write_text(json.dumps({'messages': chats.CHAT}))
  data = config.DataConfig(
    input=str(tmp_path / 'chats.jsonl'),
    tokenizer=str(chats.tokenizer_folder(tmp_path / 'tokenizer')),
    val_fraction=0.0,
    record_tokens=512,
    seq_len=128,
  )
  made = prepare.shards(data, str(tmp_path / 'a'))
  assert made.settings.window_tokens == 128


@pytest.mark.parametrize(
  'changes, words',
  [
    ({}, '--output=DIR'),
    ({'dir': ('a', 'b')}, '--data.dir=a,b names several folders'),
  ],
)
def test_unclear_output_is_refused(tmp_path, changes, words):
  with pytest.raises(config.UsageError, match=words):
    prepare.main(_config(tmp_path, **changes))


def test_missing_input_is_refused(tmp_path):
  with pytest.raises(config.UsageError, match='--data.input='):
    prepare.main(config.Config(output=str(tmp_path / 'a')))


def test_training_is_told_what_was_left_out_once(tmp_path, capsys):
  _config(tmp_path)  # Writes the text.
  data = config.DataConfig(input=str(tmp_path), record_tokens=512, seq_len=128)
  (tmp_path / 'picture').write_bytes(b'\0\xff\0')
  output = str(tmp_path.parent / f'{tmp_path.name}-shards')
  prepare.shards(data, output)
  err = capsys.readouterr().err
  assert 'prepared: 2 documents' in err
  assert '; 1 left out, the first picture (' in err
  prepare.shards(data, output)
  assert 'prepared' not in capsys.readouterr().err


def test_parts_are_done_one_by_one(tmp_path, capsys):
  out = tmp_path / 'out'
  for part in ('0/2', '1/2'):
    prepare.main(_config(tmp_path, output=str(out), part=part))
    assert f'part {part} of {out} is done' in capsys.readouterr().out
    assert not out.exists()
  prepare.main(_config(tmp_path, output=str(out), part=''))
  assert (out / 'manifest.json').exists()


@pytest.mark.parametrize('part', ['2/2', '-1/2', 'one', '1', '0/0'])
def test_part_that_is_none_is_refused(tmp_path, part):
  with pytest.raises(config.UsageError, match=f'--data.part={part} must be'):
    prepare.main(_config(tmp_path, output=str(tmp_path / 'a'), part=part))
  assert not list(tmp_path.glob('a*'))


def test_what_was_left_out_is_told(tmp_path, capsys):
  (tmp_path / 'more').mkdir()
  for i in range(4):
    (tmp_path / 'more' / f'{i}.txt').write_text(TEXT if i < 3 else TEXT[:-9])
  settings = _config(tmp_path, output=str(tmp_path / 'a'))
  data = dataclasses.replace(
    settings.data, input=str(tmp_path / 'more'), val_fraction=0.0
  )
  prepare.main(dataclasses.replace(settings, data=data))
  told = capsys.readouterr()
  assert '  left out   2 duplicates\n' in told.out
  assert told.err.endswith('; 2 duplicates\n')
