# SPDX-License-Identifier: Apache-2.0
"""Streamed checkpoints are those of the manager, one part at a time."""

import errno
import os
import shutil
import signal
import time

import jax
import ml_dtypes
import numpy as np
import pytest

from zaya_jax.checkpoint import arrays, errors, meta
from zaya_jax.checkpoint.actions import listing
from zaya_jax.checkpoint.reading import reader
from zaya_jax.checkpoint.writing import stream

META = {'config': {}, 'metrics': {}}
VALUES = {
  'params': {
    'layers': {'w': np.arange(24.0).reshape(3, 4, 2).astype('bfloat16')},
    'embed': np.arange(10, dtype=np.float16).reshape(5, 2),
    'norm': np.arange(3, dtype=np.float32),
  },
  'buffers': {'bias': np.arange(6, dtype=np.float32).reshape(3, 2)},
}
CHUNKS = {(3, 4, 2): (1, 2, 2), (5, 2): (2, 2), (3,): (3,), (3, 2): (1, 2)}


def streamed(value: np.ndarray, log=None) -> stream.Array:
  """In parts of some rows; `log` is told of each."""
  chunk = CHUNKS[value.shape]
  step = chunk[0]

  def parts():
    for first in range(0, len(value), step):
      if log is not None:
        log.append((value.shape, first))
      rows = slice(first, min(first + step, len(value)))
      yield rows, value[rows]

  return stream.Array(value.shape, value.dtype, chunk, parts)


def test_checkpoint_is_the_one_that_the_manager_writes(tmp_path, make_manager):
  with make_manager() as checkpoints:
    state = jax.tree.map(jax.numpy.asarray, VALUES)
    checkpoints.save(0, state, data_index=0, meta=META)
  written = []
  directory = tmp_path / 'streamed' / 'checkpoints' / '0'
  stream.write(
    str(directory), jax.tree.map(streamed, VALUES), META, written.append
  )
  first = listing.entry(checkpoints.directory(0))
  second = listing.entry(str(directory))
  assert first['valid'] and second['valid'], (first, second)
  assert first['state_hash'] == second['state_hash']
  assert first['params_hash'] == second['params_hash']
  assert sum(written) == sum(a.nbytes for a in jax.tree.leaves(VALUES))
  assert meta.read(str(directory)) == meta.read(checkpoints.directory(0))


def test_arrays_are_made_one_after_another(tmp_path):
  log = []
  tree = jax.tree.map(lambda a: streamed(a, log), VALUES)
  stream.write(str(tmp_path / '0'), tree, META)
  shapes = [shape for shape, _ in log]
  assert shapes == sorted(shapes, key=shapes.index)
  assert len(log) == 3 + 3 + 1 + 3


def test_half_precision_is_widened_and_nothing_is_narrowed(tmp_path):
  directory = tmp_path / '0'
  stream.write(str(directory), jax.tree.map(streamed, VALUES), META)
  mesh = jax.make_mesh((1,), ('replica',), devices=jax.devices()[:1])
  wanted = lambda kind: arrays.on_mesh(
    jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, kind(a)), VALUES), mesh
  )
  found = reader.restore_params(str(directory), wanted(lambda a: np.float32))
  for value, leaf in zip(
    jax.tree.leaves(VALUES), jax.tree.leaves(found), strict=True
  ):
    assert leaf.dtype == np.float32
    np.testing.assert_array_equal(leaf, value.astype(np.float32))
  for kind in (ml_dtypes.bfloat16, np.float16):
    with pytest.raises(errors.CheckpointError, match='does not fit'):
      reader.restore_params(str(directory), wanted(lambda a, k=kind: k))


def test_error_of_a_part_is_passed_on_and_nothing_is_left(tmp_path):
  error = errors.CheckpointError('the source is gone.')

  def parts():
    yield slice(0, 1), np.zeros(1, np.float32)
    raise error

  array = stream.Array((2,), np.dtype(np.float32), (1,), parts)
  with pytest.raises(errors.CheckpointError, match='the source is gone'):
    stream.write(str(tmp_path / '0'), {'params': {'w': array}}, META)
  assert not (tmp_path / '0').exists()


def test_writer_of_which_one_array_failed_writes_no_more(tmp_path):
  """Orbax gives up at the first failure, and the other arrays go on."""
  log = []

  def slow(name, broken):
    def parts():
      if broken:
        raise OSError(errno.ENOSPC, 'no space')
      for row in range(2):
        time.sleep(0.1)
        log.append((name, row))
        yield slice(row, row + 1), np.zeros(1, np.float32)

    return stream.Array((2,), np.dtype(np.float32), (1,), parts)

  tree = {name: slow(name, name == 'a') for name in 'abcd'}
  with pytest.raises(errors.CheckpointError, match='cannot be written'):
    stream.write(str(tmp_path / 'run' / '0'), {'params': tree}, META)
  shutil.rmtree(tmp_path / 'run')
  made = len(log)
  time.sleep(0.5)
  assert len(log) == made == 0
  assert not list(tmp_path.iterdir())


@pytest.fixture
def interruptible():
  """Ctrl-C interrupts, also where a shell's background job ignores it."""
  old = signal.signal(signal.SIGINT, signal.default_int_handler)
  yield
  signal.signal(signal.SIGINT, old)


def test_interrupted_writer_writes_no_more(tmp_path, interruptible):
  """Orbax writes in a thread, which would make a removed folder anew."""
  log, sent = [], []

  def progress(_):
    time.sleep(0.05)
    if len(log) >= 2 and not sent:
      sent.append(True)
      os.kill(os.getpid(), signal.SIGINT)

  tree = jax.tree.map(lambda a: streamed(a, log), VALUES)
  with pytest.raises(KeyboardInterrupt):
    stream.write(str(tmp_path / 'run' / '0'), tree, META, progress)
  shutil.rmtree(tmp_path / 'run')
  made = len(log)
  time.sleep(0.3)
  assert 2 <= len(log) == made < 10
  assert not list(tmp_path.iterdir())
