# SPDX-License-Identifier: Apache-2.0
"""How a run falls back when a compiled step does not fit, and what it says."""

import types

import jax
import pytest

from ops import dispatch
from zaya_jax import config as config_lib
from zaya_jax.parallel import mesh as mesh_lib
from zaya_jax.train import ways as ways_lib

GB = 10**9
_RESERVE = ways_lib._reserve
FLAGS = (
  '--model.num_layers=8 --model.d_model=512 --model.d_expert=512 '
  '--data.seq_len=1024 --data.batch_size=64'
).split()


@pytest.fixture(autouse=True)
def room(monkeypatch):
  """Sets how large a piece of memory can be had; at first any."""
  largest = [float('inf')]
  monkeypatch.setattr(ways_lib, '_reserve', lambda _, n: n <= largest[0])
  return lambda num_bytes: largest.__setitem__(0, num_bytes)


def make(*words, capacity=100 * GB, platform='cuda'):
  """A run on one device with so much memory; None: it does not say."""
  config = config_lib.Config.parse([*FLAGS, *words])
  stats = None if capacity is None else {'bytes_limit': capacity}
  device = types.SimpleNamespace(memory_stats=lambda: stats)
  mesh = types.SimpleNamespace(size=1, local_devices=[device])
  with dispatch.compile_for(platform):
    return config, ways_lib.Ways(config, mesh)


class Step:
  """A jitted step that says how many bytes it takes."""

  def __init__(self, took):
    self.took = took

  def lower(self, *_):
    return self

  def compile(self):
    return self

  def memory_analysis(self):
    return types.SimpleNamespace(
      argument_size_in_bytes=3 * GB,
      output_size_in_bytes=4 * GB,
      alias_size_in_bytes=2 * GB,
      temp_size_in_bytes=self.took - 5 * GB,
    )


def compiled(ways, config, takes):
  """The settings that were compiled, and what was said.

  `takes`: of a config, bytes of its program.
  """
  tried, said = [], []

  def make_step(config):
    tried.append((config.model.remat, config.optim.accumulation))
    return Step(takes(config))

  ways.compile(make_step, config, (None, None), said.append)
  return tried, said


def test_the_first_way_is_compiled_once_where_it_fits():
  config, ways = make()
  assert compiled(ways, config, lambda _: 50 * GB) == ([('cheap', 1)], [])


def test_too_large_a_program_falls_back_with_one_line():
  config, ways = make()
  takes = lambda c: (98 if c.optim.accumulation == 1 else 60) * GB
  tried, [said] = compiled(ways, config, takes)
  assert tried == [('cheap', 1), ('cheap', 2)]
  assert 'needs 98 of 100 GB' in said
  assert '--optim.accumulation=2' in said


def test_memory_in_pieces_falls_back_with_one_line(room):
  room(50 * GB)
  config, ways = make()
  takes = lambda c: (70 if c.optim.accumulation == 1 else 55) * GB
  tried, [said] = compiled(ways, config, takes)
  assert tried == [('cheap', 1), ('cheap', 2)]
  assert 'needs 70 of 100 GB, its temporaries in one piece that is not' in said
  room(10 * GB)
  with pytest.raises(
    config_lib.UsageError, match='not free; lower --data.batc'
  ):
    compiled(ways, config, takes)


def test_a_piece_that_is_there_can_be_had_again():
  [device] = jax.devices()[:1]
  assert all(_RESERVE(device, 4 * 2**20) for _ in range(3))
  assert not _RESERVE(device, 2**50)


def test_where_nothing_fits_the_error_names_what_to_lower():
  config, ways = make()
  with pytest.raises(config_lib.UsageError, match='--data.batch_size=64'):
    compiled(ways, config, lambda _: 500 * GB)


def test_what_is_said_is_tried_even_if_it_hardly_fits():
  said = (
    '--model.remat=none --model.scan_layers=true --optim.accumulation=1 '
    '--optim.newton_schulz_gram=false'
  ).split()
  config, ways = make(*said)
  tried, said = compiled(ways, config, lambda _: 99 * GB)
  assert (tried, said) == ([('none', 1)], [])


def test_a_cpu_computes_as_ever_and_says_nothing():
  config, ways = make(capacity=None, platform='cpu')
  assert ways.notes() == []
  found = ways.apply(config)
  assert (found.model.remat, found.model.scan_layers) == ('none', 'true')
  assert (found.optim.newton_schulz_gram, found.optim.parts) == ('false', 1)
  assert compiled(ways, config, lambda _: 500 * GB)[0] == [('none', 1)]


def test_choice_is_one_line_of_flags_that_give_it_again():
  config, ways = make('--model.num_heads=2', '--model.head_dim=128')
  [line] = ways.notes()
  words = [w.rstrip(':') for w in line.split() if w.startswith('--')]
  assert line.startswith('auto: ')
  said = config_lib.Config.parse([*FLAGS, *words])
  applied = ways.apply(config)
  assert said.model.computed_as(applied.model) == said.model
  assert said.optim == applied.optim


def test_head_without_fast_kernels_says_what_it_costs():
  _, slow = make('--model.head_dim=64')
  assert '--model.head_dim=64' in slow.notes()[-1]
  assert len(slow.notes()) == 2


def test_far_too_small_a_device_is_told_before_anything_is_compiled():
  with pytest.raises(config_lib.UsageError, match='--model.num_layers='):
    make(capacity=GB // 2)


def test_this_machine_is_asked():
  mesh = mesh_lib.make_mesh(config_lib.MeshConfig(), jax.devices()[:1])
  assert ways_lib.Ways(config_lib.Config(), mesh).notes() == []


def test_arguments_and_temporaries_count_and_donated_ones_once():
  assert ways_lib.compiled_bytes(Step(40 * GB)) == 40 * GB
  plain = jax.jit(lambda x: x + 1).lower(jax.numpy.zeros(1024)).compile()
  assert ways_lib.compiled_bytes(plain) >= 8192
