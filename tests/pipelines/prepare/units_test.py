# SPDX-License-Identifier: Apache-2.0
"""The same folder, however the work was divided and whenever it was killed."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines import errors, prepare
from pipelines.prepare import bundle, units
from pipelines.shards import manifest

ROOT = pathlib.Path(__file__).parents[3]
SMALL = {'record_tokens': 64, 'shard_tokens': 2048, 'val_fraction': 0.1}


@pytest.fixture
def corpus(tmp_path, monkeypatch):
  """Rows in files of each kind; more units than files."""
  monkeypatch.setattr(units, '_UNIT', 3000)
  folder = tmp_path / 'corpus'
  folder.mkdir()
  texts = [f'text {i} ' + 'añ☃ ' * (i % 9) for i in range(300)]
  rows = [json.dumps({'text': t}) + '\n' for t in texts]
  (folder / 'a.jsonl').write_text(''.join(rows[:60]))
  (folder / 'b.jsonl').write_text(''.join(rows[50:100]))
  table = pa.table({'text': texts[100:]})
  pq.write_table(table, folder / 'c.parquet', 40, compression=None)
  (folder / 'd.txt').write_text('x')
  return folder


def _content(folder):
  return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


def _names(data):
  return {
    name for s in data.splits.values() for shard in s.shards
    for name in (shard.name,)
  }  # fmt: skip


def test_units_cover_the_input_once(corpus):
  from pipelines.prepare.input import read

  files = read.find(str(corpus))
  found = list(units.divide(files, []))
  assert len(found) > 4
  groups = [u.row_groups for u in found if u.row_groups]
  assert [g.start for g in groups[1:]] == [g.stop for g in groups[:-1]]
  assert (groups[0].start, groups[-1].stop) == (0, 5)
  whole = [n for u in found if not u.row_groups for _, n, _ in u.files]
  assert whole == ['a.jsonl', 'b.jsonl', 'd.txt']
  assert [i for u in found for i, _, _ in u.files] == sorted(
    i for u in found for i, _, _ in u.files
  )
  assert list(units.divide(files, ['a.jsonl'])) == found[1:]


def test_result_does_not_depend_on_units(tmp_path, corpus, monkeypatch):
  prepare.prepare(str(corpus), tmp_path / 'many', **SMALL)
  monkeypatch.setattr(units, '_UNIT', 10**9)
  prepare.prepare(str(corpus), tmp_path / 'one', **SMALL)
  assert _content(tmp_path / 'many') == _content(tmp_path / 'one')


def test_result_does_not_depend_on_workers(tmp_path, corpus):
  prepare.prepare(str(corpus), tmp_path / 'one', **SMALL)
  data = prepare.prepare(str(corpus), tmp_path / 'two', workers=2, **SMALL)
  assert _content(tmp_path / 'one') == _content(tmp_path / 'two')
  assert len(_names(data)) > 4


def test_result_does_not_depend_on_runs_that_fit_into_memory(
  tmp_path, corpus, monkeypatch
):
  prepare.prepare(str(corpus), tmp_path / 'one', **SMALL)
  monkeypatch.setattr(units.spool, '_RUN', 30)
  prepare.prepare(str(corpus), tmp_path / 'small', **SMALL)
  assert _content(tmp_path / 'one') == _content(tmp_path / 'small')


def test_parts_make_what_one_call_makes(tmp_path, corpus):
  prepare.prepare(str(corpus), tmp_path / 'one', **SMALL)
  out = tmp_path / 'parts'
  for i in range(3):
    assert prepare.prepare(str(corpus), out, part=(i, 3), **SMALL) is None
    assert not out.exists()
  made = []
  prepare.prepare(str(corpus), out, progress=lambda *c: made.append(c), **SMALL)
  assert _content(tmp_path / 'one') == _content(out)
  assert not (tmp_path / 'parts.partial').exists()


def test_what_parts_have_done_is_not_done_again(tmp_path, corpus, monkeypatch):
  for i in range(2):
    prepare.prepare(str(corpus), tmp_path / 'out', part=(i, 2), **SMALL)
  monkeypatch.setattr(units.tokenize, 'encode', None)
  prepare.prepare(str(corpus), tmp_path / 'out', **SMALL)
  # A part of a folder that is finished has nothing to do.
  again = prepare.prepare(str(corpus), tmp_path / 'out', part=(0, 2), **SMALL)
  assert again == manifest.verify(tmp_path / 'out')


def test_parts_train_no_tokenizer(tmp_path, corpus):
  with pytest.raises(errors.DataError, match='would train a tokenizer'):
    prepare.prepare(
      str(corpus), tmp_path / 'out', part=(0, 2), train_tokenizer=300
    )


@pytest.mark.parametrize('where', ['units', 'shards'])
def test_killed_call_goes_on(tmp_path, corpus, monkeypatch, where):
  out, calls = tmp_path / 'out', []
  prepare.prepare(str(corpus), tmp_path / 'one', **SMALL)

  class Killed(BaseException):
    pass

  module, name = {
    'units': (units.tokenize, 'encode'), 'shards': (bundle, '_rows')
  }[where]  # fmt: skip
  true = getattr(module, name)

  def until(stop):
    def call(*args):
      calls.append(args)
      if len(calls) == stop:
        raise Killed
      return true(*args)

    calls.clear()
    monkeypatch.setattr(module, name, call)

  until(0)
  prepare.prepare(str(corpus), tmp_path / 'count', **SMALL)
  count = len(calls)
  until(4)
  with pytest.raises(Killed):
    prepare.prepare(str(corpus), out, **SMALL)
  until(0)
  prepare.prepare(str(corpus), out, **SMALL)
  assert len(calls) == count - 3
  assert _content(tmp_path / 'one') == _content(out)


class _KilledError(BaseException):
  pass


def _kill(*args):
  raise _KilledError


def test_sidecar_of_a_killed_process_goes(tmp_path, corpus, monkeypatch):
  prepare.prepare(str(corpus), tmp_path / 'one', **SMALL)
  true = os.rename

  def rename(old, new):
    if str(new).endswith('.documents'):
      raise _KilledError
    true(old, new)

  with monkeypatch.context() as patch:
    patch.setattr(bundle.os, 'rename', rename)
    with pytest.raises(_KilledError):
      prepare.prepare(str(corpus), tmp_path / 'out', **SMALL)
  monkeypatch.setattr(os, 'getpid', lambda: 7)
  prepare.prepare(str(corpus), tmp_path / 'out', **SMALL)
  assert _content(tmp_path / 'one') == _content(tmp_path / 'out')


@pytest.mark.parametrize('changed', ['field', 'file'])
def test_trained_tokenizer_is_of_the_text_that_is_read(
  tmp_path, monkeypatch, changed
):
  path, out = tmp_path / 'a.jsonl', tmp_path / 'out'

  def write(*words):
    rows = [dict(zip('ab', [f'{w} {i} ' * 9 for w in words], strict=True))
            for i in range(30)]  # fmt: skip
    path.write_text('\n'.join(map(json.dumps, rows)))

  settings = {'text_field': 'a', 'train_tokenizer': 270}
  write('one', 'two')
  with monkeypatch.context() as patch:
    patch.setattr(prepare.finish, 'write', _kill)
    with pytest.raises(_KilledError):
      prepare.prepare(str(path), out, **settings)
  if changed == 'field':
    settings['text_field'] = 'b'
  else:
    write('six', 'two')
  made = prepare.prepare(str(path), out, **settings)
  fresh = prepare.prepare(str(path), tmp_path / 'fresh', **settings)
  assert made.tokenizer_sha256 == fresh.tokenizer_sha256


def test_changed_file_is_read_again_and_no_other(tmp_path, corpus, monkeypatch):
  out = tmp_path / 'out'
  for i in range(2):
    prepare.prepare(str(corpus), out, part=(i, 2), **SMALL)
  (corpus / 'b.jsonl').write_text('{"text": "now another"}\n')
  read, true = [], units.tokenize.encode

  def call(found, files, *args):
    read.append(list(files))
    return true(found, files, *args)

  monkeypatch.setattr(units.tokenize, 'encode', call)
  prepare.prepare(str(corpus), out, **SMALL)
  assert read == [['b.jsonl']]
  prepare.prepare(str(corpus), tmp_path / 'fresh', **SMALL)
  assert _content(out) == _content(tmp_path / 'fresh')


def test_units_may_be_more_than_a_process_may_open(tmp_path):
  (tmp_path / 'corpus').mkdir()
  for i in range(60):
    (tmp_path / 'corpus' / f'{i:03}.txt').write_text(f'text {i}')
  program = f"""
import resource
from pipelines import prepare
from pipelines.prepare import units
units._UNIT = 1
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
data = prepare.prepare({str(tmp_path / 'corpus')!r},
                       {str(tmp_path / 'out')!r}, val_fraction=0.8)
print(*(s.documents for s in data.splits.values()))
"""
  done = subprocess.run(
    [sys.executable, '-c', program],
    env={**os.environ, 'PYTHONPATH': os.pathsep.join([str(ROOT), *sys.path])},
    capture_output=True,
    text=True,
    timeout=60,
  )
  train, val = map(int, done.stdout.split() or [0, 0])
  assert train + val == 60, done.stderr
  assert val > 40  # More than may be open.


@pytest.mark.long
def test_workers_end_with_the_process_that_began_them(tmp_path, corpus):
  (corpus / 'e.jsonl').write_text('{"text": "long"}\n' * 10**5)
  source = (
    'from pipelines import prepare\n'
    'if __name__ == "__main__":\n'
    f'  prepare.prepare({str(corpus)!r}, {str(tmp_path / "out")!r}, '
    'workers=2, progress=lambda *c: print("begun", flush=True))\n'
  )
  (tmp_path / 'program.py').write_text(source)
  with subprocess.Popen(
    [sys.executable, str(tmp_path / 'program.py')],
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
    stdout=subprocess.PIPE,
    text=True,
  ) as process:
    assert process.stdout.readline() == 'begun\n'
    process.send_signal(signal.SIGKILL)
    # Workers hold the other end of this pipe too.
    assert process.stdout.read() is not None
  prepare.prepare(str(corpus), tmp_path / 'out')
  assert manifest.verify(tmp_path / 'out').num_sources == 5
