# SPDX-License-Identifier: Apache-2.0
"""Saving in the background: copied, named, killed, filled and fenced off."""

import gc
import itertools
import json
import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import disk, hashes
from zaya_jax.checkpoint import folders, seal
from zaya_jax.runtime import fence, run_files, supervised

# Saves 16 MB at step 1, in arrays of which each is a write of its own.
SAVE_ONCE = """
import os, resource, signal, sys, time
import jax.numpy as jnp
import numpy as np
from zaya_jax import config
from zaya_jax.checkpoint import errors
from zaya_jax.checkpoint.writing import manager

def save(step):
  random = np.random.default_rng(step).random
  params = {f'w{i}': jnp.asarray(random(size, np.float32)) for i in range(8)}
  m.save(step, {'params': params}, data_index=step, meta={})

size, run_dir, argument = 1 << 19, *sys.argv[1:3]
m = manager.Manager(run_dir, config.CheckpointConfig())
save(1)
m.wait()
"""
THEN_DIE = """
size = 1 << 23
save(2)
while not [x for x in os.listdir(f'{run_dir}/checkpoints') if '2.uns' in x]:
  pass
time.sleep(float(argument))
os.kill(os.getpid(), signal.SIGKILL)
"""
# A file may not grow beyond 1 MB: to a program this is a full disk.
THEN_FILL = """
def limit(size):
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limit(1 << 20)
save(2)
m._finish()
print([step for step, _ in m.sealed()])
limit(resource.RLIM_INFINITY)
save(3)
m._finish()
print([step for step, _ in m.sealed()])
limit(1 << 20)
save(4)
try:
  m.close()
except errors.CheckpointError as error:
  print(error)
  sys.exit(error.exit_code)
"""


def folder(tmp_path):
  return sorted(os.listdir(tmp_path / 'run' / 'checkpoints'))


def save(checkpoints, step, state, **options):
  return checkpoints.save(step, state, data_index=step, meta={}, **options)


def test_arrays_may_be_donated_right_after_save(make_manager, abstract):
  w = np.random.default_rng(0).random(1 << 23, np.float32)
  state = {'params': {'w': jnp.asarray(w)}}
  expected, wanted = hashes.state_hash(state), abstract(state)
  forget = jax.jit(
    lambda tree: jax.tree.map(jnp.negative, tree), donate_argnums=0
  )
  with make_manager() as checkpoints:
    checkpoints.save(1, state, data_index=0, meta={})
    for _ in range(5):
      state = forget(state)
    checkpoints.wait()
    restored, _, _ = checkpoints.restore(1, wanted)
  assert hashes.state_hash(restored) == expected


def test_host_memory_is_bounded_by_saving_in_stages(
  make_manager, make_state, abstract
):
  state = make_state(3, shards=4)
  with make_manager(host_memory_gb=1e-7) as checkpoints:
    save(checkpoints, 1, state)
    assert checkpoints.newest_saved() == 1  # Nothing is copied later.
    restored, _, _ = checkpoints.restore(1, abstract(state))
  assert hashes.state_hash(restored) == hashes.state_hash(state)


def test_seal_says_what_is_needed_without_the_arrays(saved):
  said = json.loads((saved / seal.NAME).read_text())['body']
  assert said['step'] == 4 and 'params/blocks/w' in said['fingerprint']
  assert said['metrics'] == {'val/bpb': 2.5, 'train/loss': 3.5}


def test_seal_says_whose_it_is(make_manager, make_state, tmp_path, monkeypatch):
  place = supervised.Place(
    rank=0, generation=3, run_dir=str(tmp_path / 'run'), environment={}
  )
  parent = 'ab' * 16
  with make_manager() as checkpoints:
    save(checkpoints, 1, make_state())
  run_files.set_parent(str(tmp_path / 'run'), parent)
  monkeypatch.setattr(supervised, '_place', place)
  with make_manager() as checkpoints:
    save(checkpoints, 2, make_state())
    checkpoints.wait()
    one, two = (seal.read(checkpoints.directory(step)) for step in (1, 2))
  run = (tmp_path / 'run' / 'run_id').read_text().strip()
  assert one['run'] == two['run'] == run and len(run) == 32
  assert 'parent' not in one and 'generation' not in one
  assert (two['parent'], two['generation']) == (parent, 3)


def test_id_that_is_deleted_makes_no_other_run_of_this_one(
  make_manager, make_state, tmp_path
):
  with make_manager() as checkpoints:
    for step in (1, 2):
      save(checkpoints, step, make_state())
      checkpoints.wait()
      (tmp_path / 'run' / 'run_id').unlink(missing_ok=True)
    one, two = (seal.read(checkpoints.directory(step)) for step in (1, 2))
  assert one['run'] == two['run']


def test_what_is_fenced_off_while_it_seals_gets_no_name(
  saved, make_manager, make_state, tmp_path, monkeypatch
):
  place = supervised.Place(
    rank=0, generation=3, run_dir=str(tmp_path), environment={}
  )
  monkeypatch.setattr(supervised, '_place', place)
  write = seal.write

  def slow(*args, **kwargs):
    body = write(*args, **kwargs)
    fence.raise_to(str(tmp_path), 4, 4)  # While it hashes and syncs.
    return body

  with pytest.raises(fence.FencedError, match='generation 4'):
    with make_manager() as checkpoints:
      monkeypatch.setattr(seal, 'write', slow)
      save(checkpoints, 5, make_state(5))
  assert folder(tmp_path) == ['4', '5.unsealed']


def test_zombie_s_checkpoint_is_not_taken_for_one_s_own(
  make_manager, make_state, tmp_path, monkeypatch, abstract
):
  run = str(tmp_path / 'run')

  def become(generation):
    place = supervised.Place(
      rank=0, generation=generation, run_dir=run, environment={}
    )
    monkeypatch.setattr(supervised, '_place', place)

  become(2)
  with make_manager() as checkpoints:
    fence.raise_to(run, 2, 0)
    become(1)
    with monkeypatch.context() as late:  # It has checked before.
      late.setattr(supervised, 'check_fence', lambda: None)
      save(checkpoints, 3, make_state(1))
      checkpoints.wait()
    become(2)
    save(checkpoints, 3, make_state(2))
    checkpoints.wait()
    assert seal.read(checkpoints.directory(3))['generation'] == 2
    assert checkpoints.latest_step() == 3
    found, _, _ = checkpoints.restore(3, abstract(make_state()))
  assert hashes.state_hash(found) == hashes.state_hash(make_state(2))
  bad = tmp_path / 'run' / 'checkpoints' / 'bad'
  assert os.listdir(bad) == ['3-zombie']


def test_checkpoint_gets_its_name_when_all_of_it_is_on_disk(
  saved, make_manager, make_state, monkeypatch
):
  with make_manager() as checkpoints:
    events = disk.record(monkeypatch)
    save(checkpoints, 5, make_state(5))
    checkpoints.wait()
  root, aside = saved.parent, f'{saved.parent}/5.unsealed'
  named = ('name', f'{root}/5')
  assert disk.in_order(
    events,
    ('fsync', f'{aside}/{seal.NAME}.partial'),
    ('name', f'{aside}/{seal.NAME}'),
    ('fsync', aside),
    named,
    ('fsync', str(root)),
  )
  files = [path for path in (root / '5').rglob('*') if path.is_file()]
  for path in files:
    if path.name != seal.NAME:
      synced = ('fsync', f'{aside}/{path.relative_to(root / "5")}')
      assert disk.in_order(events, synced, named), path


def test_fenced_off_process_names_nothing_and_removes_nothing(
  saved, make_manager, make_state, tmp_path, monkeypatch
):
  place = supervised.Place(
    rank=0, generation=3, run_dir=str(tmp_path), environment={}
  )
  monkeypatch.setattr(supervised, '_place', place)
  facts = folders.facts

  def overtaken(*args):
    fence.raise_to(str(tmp_path), 4)
    (saved.parent / '6.unsealed').mkdir()  # Of the next generation.
    return facts(*args)

  with pytest.raises(fence.FencedError, match='generation 4'):
    with make_manager() as checkpoints:
      monkeypatch.setattr(folders, 'facts', overtaken)
      save(checkpoints, 5, make_state(5))
  assert folder(tmp_path) == ['4', '5.unsealed', '6.unsealed']
  assert not (saved.parent / '5.unsealed' / seal.NAME).exists()
  with pytest.raises(fence.FencedError):
    save(checkpoints, 7, make_state(7))  # Nor does it begin.
  assert folder(tmp_path) == ['4', '5.unsealed', '6.unsealed']


@pytest.fixture
def alarm():
  """A function: interrupts this thread, as Ctrl-C does, after some seconds."""

  def interrupt(*_):
    raise KeyboardInterrupt

  old = signal.signal(signal.SIGALRM, interrupt)
  yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
  signal.setitimer(signal.ITIMER_REAL, 0)
  signal.signal(signal.SIGALRM, old)


# An interrupt between a call and its assignment loses what was just opened.
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
def test_interrupt_at_any_moment_leaves_what_was_there_whole(
  saved, make_manager, make_state, alarm, abstract, monkeypatch
):
  # Threads that wait for what was interrupted hold up the end of Python.
  patience = 'orbax.checkpoint._src.multihost.multihost.coordination_timeout'
  monkeypatch.setattr(patience, lambda: 10)
  expected, interrupted = {4: hashes.state_hash(make_state(1))}, 0
  for step, seconds in zip(
    itertools.count(5), (1e-6, 1e-3, 3e-3, 0.01, 0.03, 0.1), strict=False
  ):
    state = make_state(step)
    expected[step] = hashes.state_hash(state)
    try:
      with make_manager(keep=99) as checkpoints:
        alarm(seconds)
        save(checkpoints, step, state)
        checkpoints.wait()
        alarm(0)
    except (KeyboardInterrupt, RuntimeError) as error:
      # Orbax cannot close what was interrupted between a thread and its start.
      assert KeyboardInterrupt in (type(error), type(error.__context__))
      interrupted += 1
    with make_manager(keep=99) as checkpoints:
      newest = checkpoints.latest_step()
      found, index, _ = checkpoints.restore(newest, abstract(make_state()))
      # A thread of Orbax may still write what does not count.
      named = {int(x) for x in folder(saved.parents[2]) if x.isdigit()}
      assert named <= {*expected}
    assert hashes.state_hash(found) == expected[newest]
    assert index == (64 if newest == 4 else newest)
  assert interrupted >= 2
  gc.collect()  # What was lost is told here, where it is no error.


@pytest.mark.parametrize('delay', [0.0, 0.1])
def test_killed_save_leaves_the_one_before(
  delay, make_manager, make_state, tmp_path, run_python, abstract
):
  killed = run_python(SAVE_ONCE + THEN_DIE, tmp_path / 'run', delay)
  assert killed.returncode == -9, killed.stderr
  assert folder(tmp_path)[0] == '1' and len(folder(tmp_path)) == 2
  wanted = {f'w{i}': jnp.zeros((1 << 19,)) for i in range(8)}
  wanted = abstract({'params': wanted})
  with make_manager() as checkpoints:
    assert checkpoints.latest_step() == 1
    restored, data_index, _ = checkpoints.restore(1, wanted)
    checkpoints.save(2, make_state(), data_index=2, meta={})
  random = np.random.default_rng(1).random
  for i in range(8):
    expected = random(1 << 19, np.float32)
    np.testing.assert_array_equal(restored['params'][f'w{i}'], expected)
  assert data_index == 1
  assert folder(tmp_path) == ['1', '2']


def test_disk_that_fills_while_saving_is_told_in_a_sentence_each_time(
  tmp_path, run_python, make_manager
):
  done = run_python(SAVE_ONCE + THEN_FILL, tmp_path / 'run', '')
  assert done.returncode == 3, done.stderr
  why = (
    f'was not written to {tmp_path}/run/checkpoints: File too large; the older '
    'ones are intact; make room there or repair the disk'
  )
  # Nothing else is printed, of what is saved well neither.
  warned = f'WARNING:root:Checkpoint 2 {why} before the next save.\n'
  assert done.stderr == warned
  assert done.stdout.splitlines() == [
    '[1]',
    '[3]',
    f'Checkpoint 4 {why}, and repeat the command.',
  ]
  # A thread of Orbax may still write while the half of step 4 is removed.
  with make_manager() as checkpoints:
    assert checkpoints.latest_step() == 3
  assert folder(tmp_path) == ['1', '3']
