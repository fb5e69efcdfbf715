# SPDX-License-Identifier: Apache-2.0
"""Training from the command line on shards in a real object store."""

import json
import socket
import urllib.request

import fsspec
import pytest

from pipelines import errors, prepare
from pipelines.shards import copies, manifest
from tests.stores.faults import ANSWER, DROP
from tests.support import tiny
from zaya_jax import main

SETTINGS = [*tiny.FLAGS, *"""
--mesh.replica=1
--model.num_layers=1
--data.batch_size=4
--checkpoint.every=2
--log.every=1
--log.sample_every=0
--eval.every=8
--eval.batches=2
--generate.max_tokens=1
--nolog.tensorboard
--nolog.report
""".split()]  # fmt: skip


# Two phases of two steps; the second reads windows of another length.
RECIPE = """
[sources]
web = "{web}"
sums = "{sums}"
[[phase]]
name = "one"
tokens = 256
mixture = {{web = 1}}
lr = {{from = 1e-2}}
[[phase]]
name = "two"
tokens = 512
mixture = {{sums = 1}}
flags = {{"data.seq_len" = 64}}
"""

both = pytest.mark.parametrize('scheme', ['s3', 'gs'], indirect=True)


@pytest.fixture(scope='module')
def shards(tmp_path_factory):
  """A folder of about fifteen shards of four records."""
  folder = tmp_path_factory.mktemp('corpus')
  for i in range(40):
    lines = (f'{i} times {j} is {i * j}.\n' for j in range(80))
    (folder / f'{i}.txt').write_text(''.join(lines))
  made = tmp_path_factory.mktemp('data') / 'shards'
  prepare.prepare(
    str(folder), made, val_fraction=0.1, record_tokens=1024, shard_tokens=4096
  )
  return made


@pytest.fixture(scope='module')
def straight(shards, tmp_path_factory):
  """What a run on the folder says."""
  run_dir = tmp_path_factory.mktemp('straight')
  assert _train(shards, run_dir) == 0
  return _losses(run_dir)


@pytest.fixture
def url(bucket, faults, shards):
  """The same shards in the store."""
  fs, _ = fsspec.core.url_to_fs(bucket)
  fs.put(f'{shards}/', f'{bucket}/web/', recursive=True)
  faults.end()
  return f'{bucket}/web'


def _train(data, run_dir, *more):
  flags = [f'--data.dir={data}', f'--run_dir={run_dir}', '--num_steps=8', *more]
  # Another process finds nothing in memory.
  copies._folder.cache_clear()
  return main.main(['zaya_jax', *SETTINGS, *flags])


def _losses(run_dir):
  """Of each step, and of the held-out text; to the last bit."""
  lines = (run_dir / 'metrics.jsonl').read_text().splitlines()
  return [
    (row['step'], name, row[name])
    for row in map(json.loads, lines)
    for name in ('train/loss', 'val/loss')
    if name in row
  ]


def _check_refused(code, capsys, expected, *words):
  """One sentence, which has these words."""
  assert code == expected
  said = capsys.readouterr().err.strip().splitlines()[-1]
  assert all(word in said for word in words), said


def _is_shard(path):
  return path.endswith('.array_record')


@both
def test_losses_are_those_of_the_folder(url, faults, straight, tmp_path):
  assert _train(url, tmp_path / 'run') == 0
  assert _losses(tmp_path / 'run') == straight
  assert len(straight) == 9
  assert any(map(_is_shard, faults.paths))


@both
def test_store_that_drops_every_third_request_changes_nothing(
  url, faults, straight, tmp_path
):
  faults.every_third()
  assert _train(url, tmp_path / 'run') == 0
  assert _losses(tmp_path / 'run') == straight
  assert len(faults.paths) > 20


def test_small_room_changes_nothing(url, straight, tmp_path, shards):
  shard = next(shards.glob('train*.array_record'))
  room = 3 * shard.stat().st_size / 1e9
  more = f'--data.copies_gb={room}'
  assert _train(url, tmp_path / 'run', more) == 0
  assert _losses(tmp_path / 'run') == straight


@both
def test_missing_bucket_is_named(faults, scheme, tmp_path, capsys):
  url = f'{scheme}://nowhere/web'
  code = _train(url, tmp_path / 'run')
  _check_refused(code, capsys, 2, url, 'does not exist')
  assert not (tmp_path / 'run' / 'checkpoints').exists()


def test_missing_credentials_are_named(
  url, tmp_path, capsys, monkeypatch, forget
):
  monkeypatch.delenv('AWS_ACCESS_KEY_ID')
  monkeypatch.delenv('AWS_SECRET_ACCESS_KEY')
  forget()
  code = _train(url, tmp_path / 'run')
  _check_refused(code, capsys, 2, url, 'permission or credentials')


def test_wrong_credentials_are_named(
  url, tmp_path, capsys, monkeypatch, running
):
  def enforce(after):
    request = urllib.request.Request(
      f'{running["s3"][0]["AWS_ENDPOINT_URL"]}/moto-api/reset-auth',
      data=after.encode(),
      headers={'Content-Type': 'text/plain'},
    )
    urllib.request.urlopen(request).close()

  enforce('0')
  try:
    code = _train(url, tmp_path / 'run')
  finally:
    enforce('inf')
  _check_refused(code, capsys, 2, url, 'permission or credentials')


@both
def test_store_that_is_down_is_named(
  url, scheme, running, tmp_path, capsys, monkeypatch, forget
):
  with socket.socket() as taken:  # Bound, and nobody listens.
    taken.bind(('127.0.0.1', 0))
    port = taken.getsockname()[1]
    address = f'http://127.0.0.1:{port}'
    for name, value in running[scheme][0].items():
      if value.startswith('http'):
        monkeypatch.setenv(name, address)
    forget()
    code = _train(url, tmp_path / 'run')
  _check_refused(code, capsys, 1, url, 'did not answer 7 times')


def test_store_that_dies_in_mid_run_costs_no_more_than_time(
  url, faults, straight, tmp_path, capsys
):
  asked = lambda: sum(map(_is_shard, faults.paths))
  faults.rule = lambda number, path: DROP if asked() > 8 else ANSWER
  code = _train(url, tmp_path / 'run')
  _check_refused(code, capsys, 1, url, 'did not answer 7 times')
  last = faults.paths[-1]
  assert _is_shard(last)
  faults.end()
  assert _train(url, tmp_path / 'run') == 0
  assert _losses(tmp_path / 'run') == straight


@both
def test_shard_that_is_gone_is_named(url):
  shard = manifest.read(url).splits['train'].shards[0]
  there = f'{url}/{shard.name}'
  fs, path = fsspec.core.url_to_fs(there)
  fs.rm(path)
  with pytest.raises(errors.DataError, match='listed in manif') as caught:
    copies.take(url, shard.name, shard.sha256)
  assert caught.value.exit_code == 3 and there in str(caught.value)


def test_shard_that_was_replaced_is_noticed(url, tmp_path, capsys, monkeypatch):
  assert _train(url, tmp_path / 'run', '--num_steps=4') == 0
  fs = fsspec.filesystem('s3')
  for path in fs.glob(f'{url}/train*.array_record'):
    fs.pipe_file(path, fs.cat_file(path)[::-1])
  # Copies stay what they were; on another machine there are none.
  assert _train(url, tmp_path / 'run', '--num_steps=6') == 0
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'elsewhere'))
  code = _train(url, tmp_path / 'run')
  _check_refused(code, capsys, 3, url, 'changed since', 'sha256')


def test_shard_that_was_replaced_is_noticed_by_the_phase_that_reads_it(
  bucket, url, shards, tmp_path, capsys
):
  fs, _ = fsspec.core.url_to_fs(bucket)
  fs.put(f'{shards}/', f'{bucket}/sums/', recursive=True)
  for path in fs.glob(f'{bucket}/sums/train*.array_record'):
    fs.pipe_file(path, fs.cat_file(path)[::-1])
  recipe, run_dir = tmp_path / 'recipe.toml', tmp_path / 'run'
  recipe.write_text(RECIPE.format(web=url, sums=f'{bucket}/sums'))
  code = main.main(
    ['zaya_jax', *SETTINGS, f'--recipe={recipe}', f'--run_dir={run_dir}']
  )
  _check_refused(code, capsys, 3, f'{bucket}/sums', 'changed since')
  # The first phase is whole, and saved.
  assert [step for step, name, _ in _losses(run_dir) if 'train' in name][
    -1
  ] == 2
  assert (run_dir / 'checkpoints' / '2').exists()


def test_shards_that_were_prepared_again_are_noticed(
  url, shards, tmp_path, capsys
):
  assert _train(url, tmp_path / 'run', '--num_steps=2') == 0
  fs = fsspec.filesystem('s3')
  fs.rm(url, recursive=True)
  text = tmp_path / 'text.txt'
  text.write_text('Another text. ' * 1000)
  prepare.prepare(str(text), url, record_tokens=1024)
  code = _train(url, tmp_path / 'run')
  _check_refused(code, capsys, 3, url, 'not those')
