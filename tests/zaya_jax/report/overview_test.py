# SPDX-License-Identifier: Apache-2.0
"""The page beside training, and the page of several runs."""

import os
import re
import shutil

import pytest

from tests.support import pages, run_files
from zaya_jax import config as config_lib
from zaya_jax.report import overview, page


def test_settings_that_differ_are_listed(tmp_path):
  folders = [
    str(run_files.write(tmp_path / name, layers=layers))
    for name, layers in (('a', 2), ('b', 3))
  ]
  text = page.render(overview.make(overview.read(folders)))
  assert '--model.num_layers\n  a: 2\n  b: 3' in pages.Parsed(text).words
  assert '--seed' not in pages.Parsed(text).words


def _live(folder, **changes):
  config = config_lib.Config(
    run_dir=str(folder), log=config_lib.LogConfig(**changes)
  )
  return overview.Live(config, wanted=True)


def test_training_keeps_the_page(tmp_path, monkeypatch):
  now = [0.0]
  monkeypatch.setattr('time.monotonic', lambda: now[0])
  run = run_files.write(tmp_path / 'run', done=100)
  with _live(run) as live:
    assert not live.is_due()
    now[0] = 31.0
    assert live.is_due()
    live.write()
    assert 'running: step 100' in (run / 'report.html').read_text()
    assert not live.is_due()
  assert 'stopped: step 100' in (run / 'report.html').read_text()


def test_page_takes_at_most_a_hundredth_of_the_run(tmp_path, monkeypatch):
  now = [0.0]
  monkeypatch.setattr('time.monotonic', lambda: now[0])
  monkeypatch.setattr(
    overview, 'write', lambda *args, **kwargs: now.__setitem__(0, now[0] + 7)
  )
  live = _live(tmp_path)
  live.write()
  now[0] += 690
  assert not live.is_due()
  now[0] += 20
  assert live.is_due()


def test_page_that_cannot_be_written_does_not_stop_the_run(tmp_path, caplog):
  run = run_files.write(tmp_path / 'run')
  (run / 'report.html.partial').mkdir()
  with _live(run) as live:
    live.write()
    live.write()
    assert caplog.text.count('report.html is paused') == 1
    assert 'written again' not in caplog.text
    (run / 'report.html.partial').rmdir()
    live.write()
    live.write()
  assert caplog.text.count('report.html is written again') == 1
  assert caplog.text.count('report.html is paused') == 1
  assert (run / 'report.html').exists()


def test_page_leaves_the_last_of_the_disk_to_checkpoints(
  tmp_path, caplog, monkeypatch
):
  run = run_files.write(tmp_path / 'run')
  known = {*os.listdir(run)}
  usage = shutil.disk_usage(run)._replace(free=50e6)
  monkeypatch.setattr(overview.shutil, 'disk_usage', lambda folder: usage)
  _live(run).write()
  assert {*os.listdir(run)} == known  # No page and no library.
  assert 'only 50 MB are free' in caplog.text


def test_run_that_fails_leaves_a_page_and_ctrl_c_does_not_wait(tmp_path):
  for name, error in (('a', ValueError), ('b', KeyboardInterrupt)):
    run = run_files.write(tmp_path / name)
    with pytest.raises(error), _live(run):
      raise error
  assert (tmp_path / 'a' / 'report.html').exists()
  assert not (tmp_path / 'b' / 'report.html').exists()


def test_page_that_is_not_wanted_is_not_written(tmp_path):
  with _live(tmp_path, report=False) as live:
    live.write()
  assert list(tmp_path.iterdir()) == []


def test_each_part_of_the_page_has_a_name_of_its_own(tmp_path):
  """The script finds its data, and figures their places, by these names."""
  run = run_files.write(tmp_path / 'run', layers=2)
  made = overview.make(overview.read([str(run)]))
  names = re.findall(
    r'\sid="([^"]*)"', page.render(made).partition('<script type')[0]
  )
  names += re.findall(r'<script [^>]*id="([^"]*)"', page.render(made))
  assert 'data' in names and 'page-data' in names
  assert len(set(names)) == len(names)
