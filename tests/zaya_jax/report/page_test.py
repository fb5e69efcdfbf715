# SPDX-License-Identifier: Apache-2.0
"""The HTML of a page: whole, small, and text stays text."""

import base64
import dataclasses
import hashlib
import json
import os
import random

import markupsafe
import pytest

from tests.support import pages, run_files
from zaya_jax.report import overview, page

FIGURES = [
  'loss',
  'bpb',
  'experts',
  'spread',
  'entropy',
  'throughput',
  'mfu',
  'lr',
  'grad',
  'time',
  'samples',
  'data',
  'incidents',
]


def _render(*folders):
  return page.render(overview.make(overview.read([str(f) for f in folders])))


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  return run_files.write(tmp_path_factory.mktemp('page') / 'run')


def test_page_has_every_figure_with_its_data(run):
  text = _render(run)
  found, figures = pages.Parsed(text), pages.figures(text)
  assert list(figures) == FIGURES
  assert set(FIGURES) <= set(found.ids)
  assert not [name for name, figure in figures.items() if not figure['choices']]
  assert 'done: step 200 of 200' in found.words
  assert '8 x AMD Instinct MI300X' in found.words


def test_page_fetches_nothing_but_the_library_beside_it(run):
  found = pages.Parsed(_render(run))
  assert [x for x in found.links if x[0] != '#'] == ['data:,', 'plotly.min.js']
  assert "default-src 'none'" in found.policy
  assert 'http' not in found.policy


def test_only_our_own_script_may_run(run):
  found = pages.Parsed(_render(run))
  digest = hashlib.sha256(found.scripts[-1].encode()).digest()
  assert f"'sha256-{base64.b64encode(digest).decode()}'" in found.policy
  assert 'unsafe-inline' not in found.policy.split('style-src')[0]


def test_hostile_text_stays_text(tmp_path):
  hostile = run_files.HOSTILE
  folder = run_files.write(tmp_path / 'run', prompt=hostile)
  tame = run_files.write(tmp_path / 'tame')
  metrics = (folder / 'metrics.jsonl').read_text().splitlines()
  row = {**json.loads(metrics[-1]), hostile: hostile, 'train/loss': hostile}
  (folder / 'metrics.jsonl').write_text(
    '\n'.join([*metrics, json.dumps(row), hostile]) + '\n'
  )
  words = {key: hostile for key in ('time', 'kind', 'seen', 'done', hostile)}
  run_files.lines(folder / 'incidents.jsonl', [{'step': 3, **words}])
  facts = json.loads((folder / 'config.json').read_text())
  facts['devices']['kind'] = facts['versions']['python'] = hostile
  facts['config']['model']['d_model'] = hostile
  (folder / 'config.json').write_text(json.dumps(facts))
  text = _render(folder)
  tags = lambda text: [
    t for t in pages.Parsed(text).tags if t not in ('ul', 'li', 'details')
  ]
  assert '<img' not in text and text.count('</script>') == 3
  assert 'summary' in tags(text) and set(tags(text)) <= set(tags(_render(tame)))
  assert hostile in pages.Parsed(text).words  # It is shown, as it is.
  figures = pages.figures(text)
  assert figures['samples']['choices'][0]['text'].startswith(hostile)
  assert figures['incidents']['choices'][0]['rows'][0][1] == hostile


def test_markup_that_is_not_escaped_is_seen(run):
  made = overview.make(overview.read([str(run)]))
  bad = dataclasses.replace(made, title=markupsafe.Markup('<img src=x>'))
  assert 'img' in pages.Parsed(page.render(bad)).tags
  assert 'img' not in pages.Parsed(page.render(made)).tags


def test_hostile_name_of_a_folder_stays_text(tmp_path):
  folder = run_files.write(tmp_path / '<img src=x onerror=alert(1)>')
  text = _render(folder, run_files.write(tmp_path / 'b'))
  assert '<img' not in text
  assert '<img src=x onerror=alert(1)>' in pages.Parsed(text).words


def test_empty_run_says_what_it_lacks(tmp_path):
  text = _render(tmp_path)
  words = pages.Parsed(text).words
  assert 'There is no metrics.jsonl.' in words and 'no metrics' in words
  figures = pages.figures(text)
  assert list(figures) == [name for name in FIGURES if name != 'mfu']
  assert not any(figure['choices'] for figure in figures.values())


def test_run_still_going_on_says_so_and_may_be_reloaded(tmp_path):
  folder = run_files.write(tmp_path / 'run', done=150)
  (run,) = overview.read([str(folder)], running=True)
  text = page.render(overview.make([run]))
  assert 'running: step 150 of 200' in text
  assert 'reload' in pages.Parsed(text).ids
  assert 'stopped: step 150 of 200' in _render(folder)
  assert 'reload' not in pages.Parsed(_render(folder)).ids


def test_long_run_of_a_large_model_stays_small(tmp_path):
  folder = run_files.write(
    tmp_path / 'run', num_steps=20_000, every=1, layers=10, experts=16
  )
  page.write(overview.make(overview.read([str(folder)])), tmp_path / 'a.html')
  assert os.path.getsize(tmp_path / 'a.html') < 1_000_000
  assert sorted(p.name for p in tmp_path.iterdir()) == [
    'a.html',
    'plotly.min.js',
    'run',
  ]


def test_our_own_part_is_small(tmp_path):
  assert len(_render(tmp_path).encode()) < 40_000


def test_library_is_copied_once_and_mended(run, tmp_path):
  path, library = tmp_path / 'a.html', tmp_path / 'plotly.min.js'
  made = overview.make(overview.read([str(run)]))
  page.write(made, path)
  first = library.stat().st_mtime_ns
  page.write(made, path)
  assert library.stat().st_mtime_ns == first
  library.write_text('half')
  page.write(made, path)
  assert library.stat().st_size == page.plotly().stat().st_size


def test_page_that_is_sent_alone_has_the_library_and_only_its_hash(
  run, tmp_path
):
  made = overview.make(overview.read([str(run)]))
  page.write(dataclasses.replace(made, alone=True), tmp_path / 'a.html')
  assert [path.name for path in tmp_path.iterdir()] == ['a.html']
  found = pages.Parsed((tmp_path / 'a.html').read_text())
  assert 'plotly.min.js' not in found.links
  scripts = [s for s in found.scripts if s and not s.startswith('{')]
  assert len(scripts) == 2 and len(scripts[0]) > 1e6
  for script in scripts:
    digest = hashlib.sha256(script.encode()).digest()
    assert f"'sha256-{base64.b64encode(digest).decode()}'" in found.policy
  assert found.policy.count('sha256-') == 2


def test_full_disk_leaves_nothing_behind(run, tmp_path, monkeypatch):
  made = overview.make(overview.read([str(run)]))

  def fsync(_):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(os, 'fsync', fsync)
  with pytest.raises(OSError, match='No space left'):
    page.write(made, tmp_path / 'a.html')
  assert list(tmp_path.iterdir()) == []


def test_page_without_the_library_is_written_too(run, tmp_path, monkeypatch):
  monkeypatch.setattr(page.importlib.util, 'find_spec', lambda name: None)
  page.write(overview.make(overview.read([str(run)])), tmp_path / 'a.html')
  assert [path.name for path in tmp_path.iterdir()] == ['a.html']


ODD = [
  None,
  True,
  -1,
  10**400,
  1e999,
  float('nan'),
  '',
  '\ud800',
  [],
  [[1]],
  {},
]


def _damage(value, rng):
  """The same, with odd values here and there."""
  if rng.random() < 0.08:
    return rng.choice(ODD)
  if isinstance(value, dict):
    return {k: _damage(v, rng) for k, v in value.items() if rng.random() < 0.97}
  if isinstance(value, list):
    return [_damage(v, rng) for v in value]
  return value


def test_damaged_files_never_stop_it(tmp_path):
  folder = run_files.write(tmp_path / 'run', num_steps=100, layers=2)
  row = {'time': 1.0, 'kind': 'hang', 'step': 3, 'seen': 'x', 'done': 'y'}
  run_files.lines(folder / 'incidents.jsonl', [row] * 3)
  names = (
    'metrics.jsonl', 'experts.jsonl', 'incidents.jsonl', 'config.json',
    'ledger.jsonl',
  )  # fmt: skip
  whole = {name: (folder / name).read_text().splitlines() for name in names}
  for seed in range(60):
    rng = random.Random(seed)
    for name, rows in whole.items():
      texts = [json.dumps(_damage(json.loads(text), rng)) for text in rows]
      content = bytearray('\n'.join(texts).encode())
      for _ in range(rng.choice([0, 3])):
        content[rng.randrange(len(content))] = rng.randrange(256)
      (folder / name).write_bytes(content)
    found = pages.figures(_render(folder))
    assert [name for name in FIGURES if name in found] == list(found), seed
    assert {*FIGURES} - {*found} <= {'mfu'}, seed
