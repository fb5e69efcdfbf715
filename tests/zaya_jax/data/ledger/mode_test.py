# SPDX-License-Identifier: Apache-2.0
"""What --mode=ledger proves of a small run, and each lie that it finds."""

import copy
import json
import shutil

import numpy as np
import pytest

from benchmarks import ledger_run
from pipelines import loader
from pipelines.shards import documents, manifest
from zaya_jax import main
from zaya_jax.checkpoint import seal, seal_key
from zaya_jax.data.ledger import chain, content, mode, story


@pytest.fixture(scope='module')
def made(tmp_path_factory):
  folder = tmp_path_factory.mktemp('made') / 'run'
  ledger_run.make(folder)
  return folder


@pytest.fixture
def run(made, tmp_path):
  shutil.copytree(made, tmp_path / 'run')
  return tmp_path / 'run'


def said(run_dir, how='all'):
  """Each check, and its reason if it failed."""
  found = mode.check(str(run_dir), how)
  return {
    row['check']: row['said'] if row['valid'] else row['reason']
    for row in found
    if 'check' in row
  }


def test_an_honest_run_is_proven(run):
  assert said(run) == {
    'chain': '12 lines; checkpoint 19 vouches for 12',
    'rows': '0 to 96, each once, as many of each source as planned',
    'shards': 'a, b: as the run read them',
    'content': 'all 19 steps, 3,328 tokens; no window twice in an epoch',
  }


def test_totals_are_those_of_the_places(run):
  told = story.read(str(run))
  found = list(mode.check(str(run), 'chain'))
  totals = [row for row in found if 'rows' in row]
  places = told.reads.order.places(range(96))
  phases = ['short'] * 40 + ['long'] * 24 + ['longer'] * 32
  for row in totals:
    mine = [
      i
      for i, (place, phase) in enumerate(zip(places, phases, strict=True))
      if (phase, 'ab'[place.source]) == (row['phase'], row['source'])
    ]
    refused = [i for i in mine if 24 <= i < 28]
    left_out = [i for i in mine if 52 <= i < 56]
    trained = len(mine) - len(refused) - len(left_out)
    assert row['rows'] == trained
    assert (row['refused'], row['left_out']) == (len(refused), len(left_out))
    assert row['tokens'] == trained * {'s': 16, 'l': 32}.get(
      row['phase'][0], 0
    ) * (1 + (row['phase'] == 'longer'))
  assert len(totals) == 6
  last = {row['source']: row['epochs'] for row in totals}
  np.testing.assert_allclose([*last.values()], told.reads.order.epochs(96))


def test_a_step_names_its_documents(run):
  told = story.read(str(run))
  shards = content.Shards(str(run), told.reads)
  found = list(mode.origin.of_step(told, shards, 3))
  assert {row['row'] for row in found} == {8, 9, 10, 11}
  text = {name: (run / f'{name}.txt').read_text() for name in 'ab'}
  with loader.make_train_loader(
    [str(run / 'a'), str(run / 'b')],
    seq_len=16,
    batch_size=4,
    seed=0,
    stretches=told.reads.order.stretches,
  ) as batches:
    batches.state = 8
    tokens = next(batches)['tokens']
  for row, given in zip(found, tokens, strict=True):
    assert row['document'] == f'{row["source"]}.txt'
    start = row['record'] * 64 + row['offset']
    data = manifest.load(run / row['source'])
    for shard in data.splits['train'].shards:
      if shard.name == row['shard']:
        break
      start += shard.records * 64
    whole = b'?' + text[row['source']].encode()  # BOS comes first.
    expected = list(whole[start : start + 16])
    assert given[1:].tolist() == expected[1:]
    hashed = documents.TextHash()
    hashed.add(text[row['source']].encode())
    assert row['text_hash'] == f'{int(hashed):016x}'


def lie(run, number, **changes):
  """Changes a line and makes the rest of the chain, without a checkpoint."""
  rows = [json.loads(x) for x in (run / chain.NAME).read_bytes().splitlines()]
  rows[number - 1] |= changes
  write(run, rows)


def write(run, rows):
  """Writes a chain of lines, without a checkpoint."""
  shutil.rmtree(run / 'checkpoints', ignore_errors=True)
  lines, head = [], ''
  for row in rows:
    row.pop('previous', None)
    lines.append(chain.encode(row, head))
    head = chain.link(lines[-1])
  (run / chain.NAME).write_bytes(b''.join(lines))


@pytest.mark.parametrize('shares', [(1, 0), (1000, 1)])
def test_a_source_may_be_prepared_anew_before_it_is_read(
  tmp_path, monkeypatch, shares
):
  phases = ('one', 40, 16, shares, 4), ('two', 24, 16, (0, 1), 4)
  monkeypatch.setattr(ledger_run, 'PHASES', phases)
  run = tmp_path / 'run'
  ledger_run.make(run)
  rows = [json.loads(x) for x in (run / chain.NAME).read_bytes().splitlines()]
  at = next(i for i, row in enumerate(rows) if row.get('phase') == 'two')
  first = copy.deepcopy(rows[0])
  rows.insert(at, first | {'row': 40, 'step': rows[at]['steps'][0]})
  rows[0]['sources'][1] |= {'manifest': '0' * 64, 'tokens': 5000}
  write(run, rows)
  found = said(run)
  assert found['content'].endswith('no window twice in an epoch')
  # Not after it was read.
  last = first | {'row': 64, 'step': rows[-1]['steps'][1]}
  rows.append(copy.deepcopy(last))
  rows[-1]['sources'][1]['manifest'] = '0' * 64
  write(run, rows)
  told = story.read(str(run))
  with pytest.raises(chain.LedgerError, match='of other shards of b than'):
    list(mode._readable(told))


SOME = '0123456789abcdef'
LIES = {
  'digest that is no sum': (2, {'digest': SOME}),
  'more tokens than places': (2, {'tokens': 10**6}),
  'other sources': (2, {'sources': [9, 7]}),
  'rows that overlap': (3, {'rows': [12, 32]}),
  'a step too many': (3, {'steps': [4, 7]}),
  'another phase': (3, {'phase': 'long'}),
  'an unknown outcome': (3, {'outcome': 'lost'}),
  'no rows at all': (3, {'rows': [16, 16], 'steps': [4, 4]}),
  'a cut digest': (3, {'each': SOME[:-1]}),
  'another place to open': (1, {'row': 4}),
  'another seed': (1, {'seed': 1}),
}


@pytest.mark.parametrize('kind', LIES)
def test_lies_in_a_chain_that_was_made_anew_are_found(run, kind):
  number, changes = LIES[kind]
  lie(run, number, **changes)
  found = said(run)
  if kind == 'another seed':  # All else fits as well.
    assert 'was given other tokens' in found['content']
  else:
    assert f'line {number + (number == 1)}, ' in found['chain']
    assert list(found) == ['chain']


def test_numbers_that_nothing_else_contradicts_are_compared_with_shards(run):
  told = story.read(str(run))
  lie(run, 2, counted=told.lines[0].counted - 1)
  assert said(run, 'chain').keys() == {'chain', 'rows'}
  assert 'Line 2 has 256 tokens' in said(run)['content']


def test_other_shards_are_not_taken_for_those_that_were_read(run):
  shutil.rmtree(run / 'a')
  shutil.copytree(run / 'b', run / 'a')
  found = said(run, 'sample')
  assert 'is not what the run read' in found['shards']
  assert 'content' not in found


def test_a_sample_finds_a_step_that_was_given_something_else(run):
  told = story.read(str(run))
  last = told.lines[-1]
  each = [*last.each[:-1], SOME]
  lie(
    run, told.count, each=''.join(each), digest=story.digest.add(each)
  )  # fmt: skip
  assert 'step 19 was given other tokens' in said(run, 'sample')['content']


def test_a_window_that_comes_twice_is_found(run):
  told = story.read(str(run))
  seen = content.Seen(told.reads)
  for start, seq_len in ((0, 16), (40, 32), (64, 64)):
    rows = np.arange(start, start + 8)
    places = np.array(told.reads.order.places(rows.tolist()))
    seen.add(rows, places, seq_len)
    if start:
      with pytest.raises(chain.LedgerError, match='repeat a window'):
        seen.add(rows[:1], places[:1], seq_len)
  places = np.array(told.reads.order.places([0]))
  places[:, 1] += 1
  seen.add(np.array([0]), places, 16)  # In another epoch it may.


def test_the_order_of_the_past_may_not_change(run):
  lines, _ = chain.read(run / chain.NAME)
  first = json.loads(lines[0])
  place = {'row': 96, 'step': 19}
  for change, good in (
    ({'stretches': [*first['stretches'], {**first['stretches'][0]}]}, True),
    ({'stretches': first['stretches'][:2]}, False),
    ({'run': '1' * 32}, False),
  ):
    line = {**first, **place, **change}
    del line['previous']
    more = chain.encode(line, chain.link(lines[-1]))
    (run / chain.NAME).write_bytes(b''.join([*lines, more]))
    found = said(run, 'chain')
    assert ('rows' in found) == good, change
    assert good or 'line 13, ' in found['chain']


def test_the_command_line(run, capsys):
  def call(*args):
    code = main.main(['zaya_jax', '--mode=ledger', f'--source={run}', *args])
    out, err = capsys.readouterr()
    return code, [json.loads(line) for line in out.splitlines()], err

  code, found, _ = call()
  assert (code, found[-1]['check'], found[-1]['valid']) == (0, 'content', True)
  code, found, _ = call('--ledger.step=19')
  assert (code, len({row['row'] for row in found})) == (0, 8)
  assert call('--ledger.step=20')[0] == 2
  (run / 'a').rename(run.parent / 'moved')
  assert call()[0] == 3
  assert call('--ledger.verify=chain')[0] == 0
  assert call(f'--data.dir={run.parent / "moved"},{run / "b"}')[0] == 0
  (run / chain.NAME).unlink()
  code, [row], _ = call()
  assert code == 3 and 'checkpoint 19 knows of 12 lines' in row['reason']
  shutil.rmtree(run / 'checkpoints')
  code, [row], _ = call()
  assert code == 3 and 'does not exist' in row['reason']


def test_lines_that_only_the_checkpoint_has_count(made, tmp_path):
  shutil.copytree(made, tmp_path / 'run')
  run = tmp_path / 'run'
  lines, _ = chain.read(run / chain.NAME)
  (run / chain.NAME).write_bytes(b''.join(lines[:10]))
  [directory] = (run / 'checkpoints').iterdir()
  path = directory / 'meta' / 'metadata'
  about = json.loads(path.read_bytes())
  about['ledger']['waiting'] = [line.decode() for line in lines[10:]]
  path.write_text(json.dumps(about))
  assert 'meta/metadata has' in said(run, 'chain')['chain']
  with seal_key.trusting(''):
    seal.write(str(directory), {'step': 19})
  assert said(run)['content'].startswith('all 19 steps')
