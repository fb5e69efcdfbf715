# SPDX-License-Identifier: Apache-2.0
"""A compiled program outlives its process, and nothing else passes for it."""

import jax
import jax.numpy as jnp
import pytest

from tests.support import tiny
from zaya_jax import config as config_lib
from zaya_jax.parallel import batch as batch_lib
from zaya_jax.parallel import mesh as mesh_lib
from zaya_jax.runtime import compiled, processes, rank
from zaya_jax.train import state as state_lib
from zaya_jax.train import step as step_lib


@pytest.fixture(autouse=True)
def supervised(tmp_path, monkeypatch):
  """This process is a rank, and JAX keeps programs."""
  place = rank.Place(rank=0, generation=1, run_dir='', environment={})
  monkeypatch.setattr(rank, '_place', place)
  before = jax.config.jax_compilation_cache_dir
  jax.config.update('jax_compilation_cache_dir', str(tmp_path))
  yield
  jax.config.update('jax_compilation_cache_dir', before)


@pytest.fixture
def kept():
  """The place of a program that doubles, and its arguments."""
  args = (jnp.arange(4.0),)
  program = _program('--a=1', args)
  program.take(jax.jit(lambda x: 2 * x).lower(*args).compile())
  program.save()
  return args


def test_a_whole_training_step_can_be_kept(tmp_path):
  """After it has run XLA could not write it."""
  config = config_lib.Config(model=tiny.config(), num_steps=4)
  mesh = mesh_lib.make_mesh(config_lib.MeshConfig(replica=1))
  with jax.set_mesh(mesh):
    state = jax.jit(state_lib.make_init(config))()
    batch = batch_lib.put_batch(mesh, tiny.batch(config.model, 8, 12))
    run = jax.jit(step_lib.make_train_step(config, hold=True))
    program = compiled.Program(
      step_lib.settings(config), (state, batch), tuple(mesh.devices.flat)
    )
    with program.compiling():
      run = run.lower(state, batch).compile()
    program.take(run)
    _, expected = run(state, batch)
    program.save()
    _, found = program.load()(state, batch)
  assert float(found['train/loss']) == float(expected['train/loss'])


def _program(settings, args):
  return compiled.Program(settings, args, jax.devices()[:1])


def test_what_was_kept_computes_the_same(kept):
  loaded = _program('--a=1', kept).load()
  assert (loaded(*kept) == 2 * kept[0]).all()


def test_it_is_away_until_it_has_run(kept):
  program = _program('--a=1', kept)
  loaded = program.load()
  assert _program('--a=1', kept).load() is None  # A run that failed with it.
  loaded(*kept)
  program.save()
  again = _program('--a=1', kept).load()
  assert (again(*kept) == 2 * kept[0]).all()


def test_what_another_process_lacks_is_compiled_and_kept(kept, monkeypatch):
  program = _program('--a=1', kept)
  with monkeypatch.context() as patch:
    patch.setattr(processes, 'all_say', lambda mine: [mine, False])
    assert program.load() is None
  program.take(jax.jit(lambda x: 3 * x).lower(*kept).compile())
  program.save()
  again = _program('--a=1', kept).load()
  assert (again(*kept) == 3 * kept[0]).all()


def test_other_settings_find_nothing(kept):
  assert _program('--a=2', kept).load() is None


@pytest.mark.parametrize(
  'args', [(jnp.arange(5.0),), (jnp.arange(4),)], ids=['shape', 'dtype']
)
def test_other_arguments_find_nothing(kept, args):
  assert _program('--a=1', args).load() is None


def test_other_flags_of_xla_find_nothing(kept, monkeypatch):
  monkeypatch.setenv('XLA_FLAGS', '--xla_dump_to=')
  assert _program('--a=1', kept).load() is None


def test_a_damaged_file_is_not_read(kept):
  program = _program('--a=1', kept)
  data = bytearray(program.path.read_bytes())
  data[len(data) // 2] ^= 1
  program.path.write_bytes(data)
  assert program.load() is None


def test_old_programs_are_removed(kept, tmp_path):
  program = _program('--a=1', kept)
  for count in range(20):
    (tmp_path / f'zaya_jax-{count}-0').touch()
  (tmp_path / 'zaya_jax-1-1').touch()  # Of another process.
  program.take(jax.jit(lambda x: 2 * x).lower(*kept).compile())
  program.save()
  assert program.path.exists()
  assert len(list(tmp_path.glob('zaya_jax-*-0'))) == 8
  assert (tmp_path / 'zaya_jax-1-1').exists()


def test_only_a_supervised_process_keeps_programs(kept, monkeypatch):
  monkeypatch.setattr(rank, '_place', None)
  program = _program('--a=1', kept)
  program.take(jax.jit(lambda x: x).lower(*kept).compile())
  program.save()
  assert program.path is None
  assert program.load() is None
