# SPDX-License-Identifier: Apache-2.0
"""Refused steps, executed again: data, a slip of a device, a bad device."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import flips, meshes, tiny
from zaya_jax import config as config_lib
from zaya_jax.parallel import batch as batch_lib
from zaya_jax.parallel import mesh as mesh_lib
from zaya_jax.train import guard as guard_lib
from zaya_jax.train import step as step_lib
from zaya_jax.train.trust import verdict

MODEL = tiny.config(num_layers=1, scan_layers='false')
CONFIG = config_lib.Config(
  num_steps=20,
  model=MODEL,
  data=config_lib.DataConfig(batch_size=8),
  # Compiles soonest; a guard reads the whole state, whatever optimizer made it.
  optim=config_lib.OptimConfig(warmup_steps=4, name='adamw', balance='adam'),
  guard=config_lib.GuardConfig(vote_every=2),
)
BATCHES = [tiny.batch(MODEL, rows=8, length=12, seed=i) for i in range(6)]
NAN = {**BATCHES[2], 'weights': BATCHES[2]['weights'] * np.nan}
RNG = np.random.default_rng(0)


class Setting:
  """A mesh of four devices and the compiled step."""

  def __init__(self, devices):
    axes = config_lib.MeshConfig(replica=devices)
    self.mesh = mesh_lib.make_mesh(axes)
    first = meshes.first_state(dataclasses.replace(CONFIG, mesh=axes))
    self._first = jax.device_get(first)
    self._place = jax.tree.map(lambda a: a.sharding, first)
    step = jax.jit(
      step_lib.make_train_step(CONFIG, hold=True), donate_argnums=0
    )
    with jax.set_mesh(self.mesh):
      self.run = step.lower(first, self.put(BATCHES[0])).compile()

  def init(self):
    """The state of step 0, without compiling `init`, which takes seconds."""
    # A copy each time: steps donate their state.
    return jax.device_put(jax.tree.map(np.copy, self._first), self._place)

  def put(self, batch):
    return batch_lib.put_batch(self.mesh, batch)

  def train(self, batches, run=None, change=None):
    """Trains; returns the state, what was measured and what was told."""
    told = []
    guard = guard_lib.Guard(CONFIG, self.mesh, lambda *args: told.append(args))
    state = self.init()
    guard.watch(run or self.run, state)
    seen = []
    try:
      for step, batch in enumerate(batches, start=1):
        if change:
          state = change(step, state)
        state, measured = guard.step(
          step, state, self.put(batch), (step - 1) * 8
        )
        seen.append(measured)
      state = guard.settle(state)
      guard.confirm(step, state)
    except guard_lib.HardwareError as error:
      return str(error), seen, told
    return jax.tree.map(np.array, state), seen, told


@pytest.fixture(scope='module')
def four():
  return Setting(4)


@pytest.fixture(scope='module')
def straight(four):
  """The state after all batches without any fault."""
  state, _, told = four.train(BATCHES)
  assert not told
  return state


def assert_same(found, expected):
  jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize(
  'devices', [pytest.param(1, marks=pytest.mark.long), 4]
)
def test_bad_batch_is_the_data_and_is_skipped(devices, request):
  if devices == 4:
    setting = request.getfixturevalue('four')
  else:
    setting = Setting(1)
  batches = [*BATCHES[:2], NAN, *BATCHES[2:]]
  state, seen, told = setting.train(batches)
  expected, _, _ = setting.train(BATCHES)
  # What is left of the bad step are its counters.
  assert (state.step, state.skipped, state.bad_steps) == (7, 1, 0)
  assert_same(
    dataclasses.replace(state, step=expected.step, skipped=expected.skipped),
    expected,
  )
  ((kind, step, what, process, _),) = told
  assert (kind, step, process) == ('refused_step', 3, None)
  assert 'windows 16 to 23' in what and 'the data or the maths' in what
  assert ('and on others' in what) == (devices == 4)
  counts = [int(m['optim/bad_steps']) for m in seen]
  assert counts == [0, 0, 1, 0, 0, 0, 0]
  skipped = [int(m['optim/skipped']) for m in seen]
  assert skipped == [0, 0, 1, 1, 1, 1, 1]


def test_refused_steps_in_a_row_are_counted_one_by_one(four):
  state, seen, told = four.train([*BATCHES[:2], NAN, NAN, NAN])
  assert (state.step, state.skipped, state.bad_steps) == (5, 3, 3)
  assert [int(m['optim/bad_steps']) for m in seen] == [0, 0, 1, 2, 3]
  assert [step for _, step, *_ in told] == [3, 4, 5]
  expected, _, _ = four.train(BATCHES[:2])
  assert_same(state.params, expected.params)
  assert_same(state.opt_state, expected.opt_state)


def slips(setting, calls, rows):
  """The step, that sees NaN in these rows at these calls."""
  count = iter(range(100))

  def run(state, batch):
    with jax.transfer_guard('allow'):
      if next(count) in calls:
        weights = np.array(batch['weights'])
        weights[rows] = np.nan
        batch = {
          **batch,
          'weights': jax.device_put(weights, batch['weights'].sharding),
        }
      return setting.run(state, batch)

  return run


def test_slip_of_a_device_is_repaired(four, straight):
  run = slips(four, {2}, slice(4, 6))  # Rows 4 and 5 are device 2's.
  state, seen, told = four.train(BATCHES, run)
  assert_same(state, straight)
  ((kind, step, what, process, agreed),) = told
  assert (kind, step, process, agreed) == ('wrong_result', 3, 0, 2)
  assert 'device 2 of process 0' in what and 'taken anew' in what
  assert [int(m['optim/skipped']) for m in seen] == [0] * 6
  assert np.isfinite(float(seen[2]['train/loss']))


def test_device_that_slips_again_ends_the_run(four):
  # The step, executed again well, and then taken anew: calls 2, 4 and 6. (3 is
  # the next step, which is held; 5 has moved rows.)
  error, _, told = four.train(BATCHES, slips(four, {2, 6}, slice(4, 6)))
  assert 'a third time it failed' in error and 'device 2' in error
  assert [kind for kind, *_ in told] == ['wrong_result']


def with_temperature(state, change):
  """The state with other temperatures: nothing divides them by four."""
  layers = state.params['layers']
  attn = {
    **layers['attn'],
    'temperature': change(layers['attn']['temperature']),
  }
  params = {**state.params, 'layers': {**layers, 'attn': attn}}
  return dataclasses.replace(state, params=params)


def corrupt(place, at, value):
  """Puts a value into one device's copy of the temperatures, before a step."""

  def change(step, state):
    if step != at:
      return state

    def spoil(data):
      data[: data.size // 2] = value
      return data

    return with_temperature(state, lambda a: flips.on_one(a, place, spoil))

  return change


@pytest.mark.parametrize('place', [0, 3])
def test_device_that_is_always_wrong_is_named(four, place):
  error, _, told = four.train(BATCHES, change=corrupt(place, 3, np.nan))
  ((kind, step, what, process, agreed),) = told
  assert (kind, step, process, agreed) == ('corrupt_replica', 3, 0, 2)
  assert f'at fault: device {place} of process 0' in what
  assert 'without that device' in error


def test_bit_that_flips_is_found_at_the_next_vote(four):
  def change(step, state):
    if step != 3:
      return state
    return with_temperature(state, lambda a: flips.flip(a, 1, RNG))

  _, seen, told = four.train(BATCHES, change=change)
  ((kind, step, what, process, agreed),) = told
  # Votes are counted one step late: before step 6 is taken in.
  assert (kind, step, process, agreed) == ('corrupt_replica', 4, 0, 2)
  assert 'device 1 of process 0 holds another copy of params/layers/' in what
  assert len(seen) == 4


def test_nothing_is_saved_after_a_flip(four):
  batches, change = BATCHES[:3], corrupt(1, 3, 0.5)
  error, _, told = four.train(batches, change=change)
  assert 'after step 3' in error and told[0][0] == 'corrupt_replica'


def test_spike_is_refused_whole(four):
  state = four.init()
  known = jnp.tile(jnp.float32([[4.4], [1.0]]), (1, state.recent.shape[1]))
  quiet = jax.device_put(known, state.recent.sharding)
  # As large as after a wrong update; finite.
  params = {**state.params, 'final_norm': state.params['final_norm'] * 1e3}
  for changes, refused in (({}, 0), ({'params': params}, 1)):
    # The step donates what it is given.
    state = jax.tree.map(
      jnp.copy, dataclasses.replace(state, recent=quiet, **changes)
    )
    before = jax.tree.map(np.array, state)
    after, measured = four.run(
      jax.tree.map(jnp.copy, state), four.put(BATCHES[0])
    )
    assert int(measured[step_lib.HELD]) == refused
    assert np.isfinite(float(measured['train/loss']))
    if refused:
      assert_same(
        jax.tree.map(np.array, after),
        dataclasses.replace(before, held=np.int32(1)),
      )


def result(loss, norm, losses):
  return verdict.Result(np.array([loss, norm]), np.array(losses)[:, None])


GOOD = result(4.0, 1.0, [1.0, 1.0, 1.0, 1.0])


@pytest.mark.parametrize(
  'first, again, moved, expected',
  [
    (GOOD, GOOD, GOOD, ('data', [])),
    # Sums in another order, NaN or Inf: the same.
    (GOOD, GOOD, result(4.0001, 1.0001, [1.0] * 4), ('data', [])),
    (
      result(np.nan, np.inf, [1, np.nan, 1, 1]),
      result(np.nan, np.nan, [1, np.inf, 1, 1]),
      result(np.nan, np.nan, [1, 1, np.inf, 1]),
      ('data', []),
    ),
    # The loss is right, the gradient is not: nobody knows where.
    (result(4.0, np.nan, [1.0] * 4), GOOD, None, ('once', [])),
    (
      result(4.0, 1e9, [1.0] * 4),
      result(4.0, 1e9, [1.0] * 4),
      GOOD,
      ('always', []),
    ),
    (result(5.0, 1.0, [1, 2, 1, 1]), GOOD, None, ('once', [1])),
    # Device 3 is wrong for rows 3 and, moved, for rows 2.
    (
      result(5.0, 1.0, [1, 1, 1, 2]),
      result(5.0, 1.0, [1, 1, 1, 2]),
      result(5.0, 1.0, [1, 1, 1, 2]),
      ('always', [3]),
    ),
    # Once only: it may be either of two.
    (
      result(5.0, 1.0, [2, 1, 1, 1]),
      result(5.0, 1.0, [2, 1, 1, 1]),
      GOOD,
      ('always', [0, 1]),
    ),
  ],
)
def test_judgement_by_hand(first, again, moved, expected):
  assert verdict.judge(first, again, moved, 0) == expected


# An infinite norm beside a finite loss is no spike of the loss.
@pytest.mark.parametrize(
  'now_2, kind',
  [((9, 9), 'loss_spike'), ((9, np.inf), 'refused_step')],
)
def test_a_spike_is_finite(monkeypatch, now_2, kind):
  told = []
  mesh = mesh_lib.make_mesh(config_lib.MeshConfig(replica=1))
  guard = guard_lib.Guard(CONFIG, mesh, lambda *args: told.append(args))
  measured = dict(zip(('train/loss', 'optim/grad_norm'), now_2, strict=True))
  guard._last = guard_lib._Taken(
    step=3, window=16, batch=None, measured=measured, held=None, losses=None
  )
  counted = types.SimpleNamespace(skipped=1, bad_steps=1)
  monkeypatch.setattr(guard, '_small', lambda change: lambda *args: counted)
  first = verdict.Result(np.array(now_2, float), np.zeros(1))
  guard._skip(None, first, others=False)
  assert [row[:2] for row in told] == [(kind, 3)]
