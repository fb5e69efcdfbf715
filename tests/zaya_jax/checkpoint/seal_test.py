# SPDX-License-Identifier: Apache-2.0
"""The seal: every byte of a checkpoint, and who sealed it."""

import hashlib
import json
import os

import pytest

from tests.support import disk
from zaya_jax.checkpoint import seal, seal_key

CONTENT = {
  'state/d/abc': b'\x01\x02' * 500,
  'state/_METADATA': b'{}',
  'meta/metadata': b'{"a":1}',
}


@pytest.fixture
def sealed(tmp_path):
  """A folder with three files, sealed at step 7."""
  for name, content in CONTENT.items():
    path = tmp_path / '7' / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
  seal.write(str(tmp_path / '7'), {'step': 7})
  return tmp_path / '7'


def reason(folder, **options):
  with pytest.raises(seal.BrokenError) as caught:
    seal.verify(str(folder), **options)
  assert caught.value.exit_code == 3 and '\n' not in str(caught.value)
  assert str(folder) in str(caught.value)
  return caught.value.reason


def forge(folder, change):
  """Changes what the seal says, with hashes that fit."""
  body = json.loads((folder / seal.NAME).read_bytes())['body']
  change(body)
  text = json.dumps(body, sort_keys=True, separators=(',', ':'))
  whole = {'body': body, 'sha256': hashlib.sha256(text.encode()).hexdigest()}
  text = json.dumps(whole, sort_keys=True, separators=(',', ':'))
  (folder / seal.NAME).write_text(text)


def test_seal_lists_names_sizes_and_hashes(sealed):
  body = seal.verify(str(sealed))
  assert body['step'] == 7
  assert body['files'] == {
    name: [len(content), hashlib.sha256(content).hexdigest()]
    for name, content in CONTENT.items()
  }


def test_every_byte_of_every_file_counts(sealed):
  for name in (*CONTENT, seal.NAME):
    path = sealed / name
    content = path.read_bytes()
    for place in range(0, len(content), max(1, len(content) // 40)):
      changed = bytearray(content)
      changed[place] ^= 1 << place % 8
      path.write_bytes(changed)
      assert reason(sealed) in {'hash', 'seal', 'json', 'name', 'missing'}
    path.write_bytes(content)
  seal.verify(str(sealed))


@pytest.mark.parametrize(
  'harm, expected',
  [
    (lambda f: (f / 'state/d/abc').unlink(), 'missing'),
    (lambda f: (f / 'state/more').write_text(''), 'extra'),
    (lambda f: (f / 'state/d/abc').write_bytes(b'short'), 'size'),
    (lambda f: os.truncate(f / 'state/d/abc', 1), 'size'),
    (lambda f: (f / seal.NAME).unlink(), 'unsealed'),
    (lambda f: (f / seal.NAME).write_text(''), 'json'),
    (lambda f: (f / seal.NAME).write_text('[]'), 'seal'),
    (lambda f: (f / seal.NAME).write_text('[' * 10**5), 'json'),
    (lambda f: os.truncate(f / seal.NAME, 2**30), 'json'),
    (lambda f: (f / 'link').symlink_to('/etc/passwd'), 'kind'),
    (lambda f: os.mkfifo(f / 'pipe'), 'kind'),
  ],
)
def test_what_is_not_as_sealed_is_refused_by_name(sealed, harm, expected):
  harm(sealed)
  assert reason(sealed) == expected
  assert reason(sealed, contents=False) == expected


def test_symbolic_link_in_place_of_a_file_is_refused(sealed):
  path = sealed / 'meta/metadata'
  path.rename(sealed.parent / 'elsewhere')
  path.symlink_to(sealed.parent / 'elsewhere')
  assert reason(sealed) == 'kind'
  (sealed / seal.NAME).rename(sealed.parent / 'there')
  (sealed / seal.NAME).symlink_to(sealed.parent / 'there')
  assert reason(sealed) == 'kind'


@pytest.mark.parametrize(
  'name',
  ['../7/x', '/etc/passwd', 'a//b', './x', 'a\\b', 'x\0', '', 'x.pkl', 'a b'],
)
def test_seal_that_leads_elsewhere_is_refused(sealed, name):
  forge(sealed, lambda body: body['files'].update({name: [1, '0']}))
  assert reason(sealed) == 'name'


def test_entries_that_mean_nothing_are_refused(sealed):
  forge(sealed, lambda body: body['files'].update({'x': {'size': 1}}))
  assert reason(sealed) == 'seal'


@pytest.fixture
def key_file(tmp_path):
  """A file with a key."""
  path = tmp_path / 'key'
  path.write_bytes(b'k' * 32)
  return path


def test_with_a_key_recomputed_hashes_are_refused(sealed, key_file, tmp_path):
  (sealed / 'meta/metadata').write_bytes(b'{"a":2}')
  with seal_key.trusting(str(key_file)):
    seal.write(str(sealed), {'step': 7})
    seal.verify(str(sealed))
  seal.verify(str(sealed))  # Without the key the hashes still count.
  (sealed / 'meta/metadata').write_bytes(b'{"a":3}')
  seal.write(str(sealed), {'step': 7})  # As one does who has no key.
  seal.verify(str(sealed))
  other = tmp_path / 'other'
  other.write_bytes(b'o' * 32)
  for file in (key_file, other):
    with seal_key.trusting(str(file)):
      assert reason(sealed) == 'key'


def test_processes_hash_their_own_files_and_share_the_check(sealed):
  folder = str(sealed)
  known = seal.digest(folder, ['state/d/abc'], sync=True)
  assert seal.write(folder, {}, known=known) == seal.verify(folder)
  for index in range(3):
    seal.verify(folder, share=(index, 3))
  (sealed / 'state/d/abc').write_bytes(b'\x01\x03' * 500)
  found = 0
  for index in range(3):
    try:
      seal.verify(folder, share=(index, 3))
    except seal.BrokenError:
      found += 1
  assert found == 1
  with pytest.raises(seal.BrokenError, match='only in part'):
    seal.write(folder, {}, known={'state/_METADATA': [3, '0']})


def test_all_is_on_disk_before_the_seal_and_its_name_after_it(
  sealed, monkeypatch
):
  """A loss of power leaves what is sealed whole, and else no seal."""
  events = disk.record(monkeypatch)
  seal.write(str(sealed), {'step': 7})
  named = events.index(('name', str(sealed / seal.NAME)))
  folders = (sealed, sealed / 'meta', sealed / 'state', sealed / 'state/d')
  before = {str(path) for path in folders}
  before |= {str(sealed / name) for name in CONTENT}
  before |= {f'{sealed}/{seal.NAME}.partial'}
  assert {*events[:named]} == {('fsync', path) for path in before}
  assert events[named + 1 :] == [('fsync', str(sealed))]


def test_files_of_other_processes_are_synced_where_they_are_hashed(
  sealed, monkeypatch
):
  events = disk.record(monkeypatch)
  known = seal.digest(str(sealed), ['state/d/abc'], sync=True)
  assert events == [('fsync', str(sealed / 'state/d/abc'))]
  events.clear()
  seal.verify(str(sealed))
  assert not events  # To read costs no writing.
  seal.write(str(sealed), {'step': 7}, known=known)
  assert ('fsync', str(sealed / 'state/d/abc')) not in events
