# SPDX-License-Identifier: Apache-2.0
"""Fast copies: in one process what is refused, in three what is lost."""

import dataclasses
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import fast_hosts, flips
from zaya_jax import config as config_lib
from zaya_jax.checkpoint import errors
from zaya_jax.checkpoint.writing import fast, neighbours
from zaya_jax.config import fields
from zaya_jax.runtime import fence, supervised

RNG = np.random.default_rng(0)
ROOT = pathlib.Path(__file__).parents[4]


class Run:
  """A run directory, and folders for two tiers."""

  def __init__(self, path, tiers=('memory@2', 'disk@4')):
    self.path, self.mesh = path, fast_hosts.make_mesh(replica=4, fsdp=2)
    self.config = config_lib.CheckpointConfig(
      fast=tuple(f'{path}/{tier}' for tier in tiers)
    )
    os.makedirs(path / 'run', exist_ok=True)
    self.like = fast_hosts.make_state(self.mesh)

  def open(self, mesh=None, like=None):
    return fast.FastTier(
      str(self.path / 'run'), self.config, mesh or self.mesh, like or self.like
    )

  def save(self, *steps):
    tier = self.open()
    for step in steps:
      if tier.is_due(step):
        state = fast_hosts.make_state(self.mesh, step)
        tier.save(step, state, data_index=8 * step, meta=fast_hosts.META)
    tier.wait()

  def copies(self, tier='memory'):
    return sorted((self.path / tier).glob('*/0/*'), key=lambda p: p.stem)


@pytest.fixture
def run(tmp_path):
  return Run(tmp_path)


def assert_restored(run, step, tier='memory', **options):
  found = run.open(**options).restore()
  assert found.step == step and f'/{tier}/' in found.where
  assert found.meta['tokens'] == 7 and found.meta['data_index'] == 8 * step
  fast_hosts.assert_same(found.state, fast_hosts.make_state(run.mesh, step))


def test_newest_state_comes_back_and_two_are_kept(run):
  run.save(*range(1, 11))
  assert [path.name for path in run.copies()] == ['10.0', '8.0']
  assert [path.name for path in run.copies('disk')] == ['4.0', '8.0']
  assert_restored(run, 10)


def test_nothing_is_there_at_first(run):
  assert run.open().restore() is None


@pytest.mark.parametrize('name', ['part', 'SEAL.json'])
def test_flipped_bit_falls_to_the_next_tier_and_then_to_an_older_state(
  run, name, caplog
):
  run.save(*range(1, 9))
  for _ in range(20):
    kept = (run.copies()[-1] / name).read_bytes()
    fast_hosts.flip(run.copies()[-1] / name)
    assert_restored(run, 8, 'disk')
    (run.copies()[-1] / name).write_bytes(kept)
  assert ('A fast copy is not used' in caplog.text) == (name == 'part')
  fast_hosts.flip(run.copies()[-1] / name)
  fast_hosts.flip(run.copies('disk')[-1] / name)
  assert_restored(run, 6)
  for path in (run.copies()[0], run.copies('disk')[0]):
    fast_hosts.flip(path / name)
  assert run.open().restore() is None


def test_what_memory_got_wrong_is_found_by_the_fingerprint(
  run, monkeypatch, caplog
):
  # The part is written from bits that are not those of the state, and sealed.
  run.save(2)
  cut = fast.parts_lib.Parts.cut

  def cut_wrongly(self, state, moves):
    name = 'moments'
    return cut(self, {**state, name: flips.flip(state[name], 3, RNG)}, moves)

  monkeypatch.setattr(fast.parts_lib.Parts, 'cut', cut_wrongly)
  run.save(4)
  monkeypatch.undo()
  shutil.rmtree(run.path / 'disk')
  assert_restored(run, 2)
  assert 'Fast copy of step 4: moments is wrong' in caplog.text


def another_run(run):
  (run.path / 'run' / 'run_id').unlink()


def fewer_devices(run):
  run.mesh = fast_hosts.make_mesh(replica=2, fsdp=2)
  run.like = fast_hosts.make_state(run.mesh)


def other_model(run):
  like = jax.ShapeDtypeStruct(
    (8, 3), jnp.float32, sharding=run.like['params'].sharding
  )
  run.like = {**run.like, 'params': like}


def past_that_is_undone(run):
  # The checkpoint that was the newest when the copy was made is gone.
  for path in run.copies():
    seal = json.loads((path / 'SEAL.json').read_text())
    assert seal['body']['shared'] == 0
  place = fast.supervised.Place(
    rank=0, generation=2, run_dir='', environment={}, skip=(1, 5)
  )
  return place


@pytest.mark.parametrize(
  'change', [another_run, fewer_devices, other_model, past_that_is_undone]
)
def test_copies_of_something_else_are_not_used(run, change, monkeypatch):
  run.save(2, 4)
  if place := change(run):
    monkeypatch.setattr(fast.supervised, 'place', lambda: place)
  assert run.open().restore() is None


def test_copy_after_a_checkpoint_that_is_gone_is_not_used(run, monkeypatch):
  monkeypatch.setattr(fast.folders, 'steps', lambda root: [2])
  run.save(4)
  assert_restored(run, 4)
  monkeypatch.setattr(fast.folders, 'steps', lambda root: [2, 4])
  assert_restored(run, 4)  # The same step, and nearer.
  monkeypatch.setattr(fast.folders, 'steps', lambda root: [2, 5])
  assert run.open().restore() is None  # The checkpoint is newer.
  monkeypatch.setattr(fast.folders, 'steps', lambda root: [])
  assert run.open().restore() is None


def test_steps_ahead_are_dropped_when_a_run_has_gone_back(run):
  run.save(6, 8)
  run.save(2)
  assert [path.name for path in run.copies()] == ['2.0']


def test_half_written_copy_does_not_count_and_is_cleared_away(run):
  run.save(2)
  half = run.copies()[0].with_name('4.0.partial')
  shutil.copytree(run.copies()[0], half)
  assert_restored(run, 2)
  run.save(6)
  assert not half.exists()


def test_full_memory_costs_a_warning_and_leaves_nothing_half(
  run, monkeypatch, caplog
):
  run.save(2)

  def fail(*_, **__):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(fast.parts_lib.Parts, 'write', fail)
  run.save(4)
  assert 'The fast copy of step 4 was not written' in caplog.text
  assert [path.name for path in run.copies()] == ['2.0']
  assert_restored(run, 2)


def test_fenced_off_process_copies_nothing(run, tmp_path, monkeypatch):
  place = supervised.Place(
    rank=0, generation=3, run_dir=str(tmp_path), environment={}
  )
  monkeypatch.setattr(supervised, '_place', place)
  run.save(2)
  fence.raise_to(str(tmp_path), 4)
  with pytest.raises(fence.FencedError):
    run.save(4)
  assert [path.name for path in run.copies()] == ['2.0']


def test_complete_run_leaves_nothing(run):
  tier = run.open()
  tier.save(4, run.like, data_index=0, meta=fast_hosts.META)
  tier.close(done=True)
  assert not run.copies() and not run.copies('disk')


def test_link_in_place_of_a_part_is_refused(run):
  run.save(2)
  part = run.copies()[0] / 'part'
  part.rename(run.path / 'elsewhere')
  part.symlink_to(run.path / 'elsewhere')
  assert run.open().restore() is None


@pytest.mark.parametrize('tier', ['/dev/shm', '@3', '/dev/shm@', '/dev/shm@0'])
def test_wrong_flag_is_refused(tier):
  with pytest.raises(fields.UsageError, match='must be DIR@STEPS'):
    config_lib.CheckpointConfig(fast=(tier,))


def test_folder_that_cannot_be_written_is_refused(run):
  run.config = dataclasses.replace(run.config, fast=('/proc/none@2',))
  with pytest.raises(
    errors.CheckpointError, match='checkpoint.fast=/proc/none'
  ):
    run.open()


@pytest.mark.parametrize(
  'hosts, ahead',
  [('a', 1), ('aa', 1), ('ab', 1), ('aabb', 2), ('abab', 1), ('aaabbbccc', 3)],
)
def test_neighbour_is_on_another_host(hosts, ahead):
  assert neighbours.ahead(hosts) == ahead


OLD, NEW, SLOW = (5, 0, 'x'), (6, 0, 'x'), (6, 1, 'x')


@pytest.mark.parametrize(
  'held, expected',
  [
    # By process: what it holds of whom.
    ([{(NEW, 0)}, {(NEW, 1)}], (NEW, {0: 0, 1: 1})),
    # Of process 1 nothing is left; 0 is its neighbour.
    ([{(NEW, 0), (NEW, 1)}, set()], (NEW, {0: 0, 1: 0})),
    # Nobody has the part of 1 of the newest state.
    ([{(NEW, 0), (OLD, 0)}, {(OLD, 1)}], (OLD, {0: 0, 1: 1})),
    # The same step in the second tier is better than an older one.
    ([{(SLOW, 0), (OLD, 0)}, {(SLOW, 1), (OLD, 1)}], (SLOW, {0: 0, 1: 1})),
    # Hosts have changed their places.
    ([{(NEW, 1)}, {(NEW, 0)}], (NEW, {0: 1, 1: 0})),
    ([set(), set()], None),
  ],
)
def test_who_gives_what(held, expected):
  offers = [{offer: 'path' for offer in some} for some in held]
  assert neighbours.choose(offers, 2) == expected


def test_three_hosts_lose_memory_and_change_places(tmp_path):
  (tmp_path / 'run').mkdir()
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    port = str(free.getsockname()[1])
  devices = '--xla_force_host_platform_device_count=2'  # The later one wins.
  started = [
    subprocess.Popen(
      [sys.executable, '-m', fast_hosts.__name__, tmp_path, port, str(process)],
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      cwd=ROOT,
      env={**os.environ, 'XLA_FLAGS': f'{os.environ["XLA_FLAGS"]} {devices}'},
    )
    for process in range(fast_hosts.HOSTS)
  ]
  said = [process.communicate(timeout=300)[0] for process in started]
  assert all('all is well' in words for words in said), '\n'.join(said)
