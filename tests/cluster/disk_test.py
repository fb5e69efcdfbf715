# SPDX-License-Identifier: Apache-2.0
"""Run directories that are full for a while, or do not answer."""

import contextlib
import time

import pytest

from tests.cluster import trial

NODES = '--aegis.nodes=a,b,c'
# Saves come each second here, and a minute apart in a run.
FLAGS = (NODES, '--aegis.spares=1', '--checkpoint.max_failed_saves=1000')
AWAY_S = 10


@pytest.fixture
def mount(site, request):
  """A function: words of `mount` -> a folder, until the test ends."""
  made = []

  def make(name, words):
    folder = site.folder / f'{name}_disk'
    folder.mkdir()
    site.box.run(f'mount {words} {folder}')
    made.append(folder)
    return folder

  yield make
  for folder in made:
    site.box.run(f'fsfreeze -u {folder} 2> /dev/null; umount {folder}')


@pytest.fixture
def start(site):
  """A function: name, folder -> a run in it, which ends with the test."""
  made = []

  def make(name, folder, *more):
    made.append(trial.Trial(site, name, folder / 'run'))
    made[-1].start(*FLAGS, *more)
    return made[-1]

  yield make
  for one in made:
    one.close()


def fill(site, folder):
  site.box.run(f'cat /dev/zero > {folder}/full 2> /dev/null', check=False)


def test_disk_that_is_full_for_a_while_costs_nothing(
  mount, start, expected, record, site
):
  folder = mount('full', '-t tmpfs -o size=48m tmpfs')
  run = start('disk_full', folder)
  run.await_step(20)
  since = time.time()
  fill(site, folder)
  with contextlib.suppress(TimeoutError):  # But its last save needs room.
    late = 'Checkpoint 90 was not written'
    trial.await_(lambda: run.said(late), late, AWAY_S)
  site.box.run(f'rm {folder}/full')
  row = record(trial.finish(run, expected, since))
  trial.assert_whole(row, losses=False)  # A full disk takes no rows.
  assert row['incidents'] == []


def test_disk_that_stays_full_ends_with_3_and_goes_on_later(
  mount, start, expected, record, site
):
  folder = mount('stays_full', '-t tmpfs -o size=48m tmpfs')
  run = start('disk_stays_full', folder, '--checkpoint.max_failed_saves=3')
  run.await_step(20)
  since = time.time()
  fill(site, folder)
  code = run.wait()
  site.box.run(f'rm {folder}/full')
  run.start(*FLAGS)
  row = record(trial.finish(run, expected, since) | {'first_code': code})
  trial.assert_whole(row, losses=False)
  assert code == 3


def test_disk_that_stalls_condemns_nobody(mount, start, expected, record, site):
  image = site.folder / 'stalls.img'
  site.box.run(f'truncate -s 64M {image} && mkfs.ext4 -q {image}')
  folder = mount('stalls', f'-o loop {image}')
  run = start('disk_stalls', folder)
  run.await_step(20)
  since = time.time()
  site.box.run(f'fsfreeze -f {folder}')
  time.sleep(AWAY_S)
  site.box.run(f'fsfreeze -u {folder}')
  row = record(trial.finish(run, expected, since))
  trial.assert_whole(row)
  assert 'agent_lost' not in row['incidents']
  last = [r for r in run.rows() if 'done' in r]
  assert not any(r['done']['kind'] == 'replace_node' for r in last)
