# SPDX-License-Identifier: Apache-2.0
"""--plan.hours: the dial for so many hours, its tokens, and the loss to expect.

Where a law was fitted, it is the dial of the lowest expected loss; else the
largest whose own tokens, 20 for each active parameter, are done in time. What
time is left or lacks goes into the tokens, and batch and learning rate follow.
"""

from typing import Any, NamedTuple

from zaya_jax import config as config_lib
from zaya_jax.config import fields
from zaya_jax.config.presets import dial as dial_lib
from zaya_jax.model import flops
from zaya_jax.plan import law as law_lib
from zaya_jax.plan.cost import auto, division, machine, timing
from zaya_jax.plan.cost import collectives as collectives_lib

# Dials in a row with a higher loss that end the search: rounding makes steps.
_PATIENCE = 4


class _Run(NamedTuple):
  """A dial in the time that there is."""

  config: config_lib.Config
  tokens: int
  step: float  # Seconds.
  needs: float  # Bytes of a device.
  capacity: float


def find(config: config_lib.Config) -> dict[str, Any]:
  """The dial, and what training by it comes to.

  Returns:
    dial, hours, tokens, steps, active and total parameters, step in seconds,
    memory and capacity in bytes of a device, flags by name; law, None or
    bits_per_byte, held_out, beyond and about.

  Raises:
    UsageError: if the length of the run is given too, or the dial does not fit.
  """
  for name in (*dial_lib.LENGTHS, 'plan.tokens'):
    if name in config.given:
      raise config_lib.UsageError(
        f'--plan.hours={config.plan.hours:g} and --{name} both say how long '
        'the run is; drop one.'
      )
  law = law_lib.Law.read()
  if config.dial:
    auto.check_plan(config)
    run = _run(config, config.dial)
  else:
    run = _best(config, law)
  return _row(config, run, law)


def _best(config, law) -> _Run:
  """The dial that the law, or the ratio of tokens to parameters, chooses."""
  first = _largest(lambda n: _in_time(config, n))
  best = _run(config, first)
  if not law:
    return best
  expect = lambda run: law.loss(law.size(run.config, run.tokens))
  for step in (1, -1):
    n, worse = first, 0
    while worse < _PATIENCE and 1 <= (n := n + step) <= dial_lib.MOST:
      try:
        run = _run(config, n)
      except config_lib.UsageError:
        break
      if run.needs <= run.capacity and expect(run) < expect(best):
        best, worse = run, 0
      else:
        worse += 1
  return best


def _largest(is_small) -> int:
  """The largest dial that is small, at least 1: those below it are, too."""
  low, high = 1, dial_lib.MOST + 1
  while high - low > 1:
    middle = (low + high) // 2
    low, high = (middle, high) if is_small(middle) else (low, middle)
  return low


def _in_time(config, n) -> bool:
  """Whether a dial fits and its own tokens are done in time."""
  at = config.at_dial(n)
  try:
    step, needs, capacity = _cost(at)
  except config_lib.UsageError:
    return True  # Its batch is too small for the mesh.
  return needs <= capacity and step * at.num_steps <= _seconds(config)


def _run(config, n) -> _Run:
  """A dial with all tokens that the time allows, which decide its batch."""
  at = config.at_dial(n)
  at = config.at_dial(n, _tokens(at, _cost(at)[0]))
  step, needs, capacity = _cost(at)
  tokens = _tokens(at, step)
  return _Run(config.at_dial(n, tokens), tokens, step, needs, capacity)


def _tokens(config, step) -> int:
  """Of the steps that the time allows."""
  each = config.data.batch_size * config.data.seq_len
  return each * max(1, int(_seconds(config) / step))


def _seconds(config) -> float:
  return 3600 * config.plan.hours


def _cost(config) -> tuple[float, float, float]:
  """Seconds of a step, bytes of a device that it needs and that there are."""
  way, chip = auto.of_chip(config)
  config = way.config
  rates, layout = machine.rates_of(config), division.make(config)
  sent = collectives_lib.plan(config, layout, rates.chip, rates.machine)
  step = timing.plan(config, layout, rates, sent).step
  return step, way.needs, chip.memory


def _row(config, run, law) -> dict[str, Any]:
  at = run.config
  model = at.model
  count = flops.parameters(model)
  given = {name for name in config.given if name != 'dial'}
  flags = dial_lib.settings(at.dial, {}, run.tokens)
  row = {
    'dial': at.dial,
    'hours': config.plan.hours,
    'chip': config.plan.chip,
    'devices': config.plan.devices,
    'tokens': run.tokens,
    'steps': run.tokens // (at.data.batch_size * at.data.seq_len),
    'active': count.active,
    'parameters': count.total,
    'step': run.step,
    'memory': run.needs,
    'capacity': run.capacity,
    'flags': {
      name: fields.value(at, name)
      for name in flags
      if name not in given and name != 'num_steps'
    },
    'law': None,
  }
  if law:
    size = law.size(run.config, run.tokens)
    row['law'] = {
      'bits_per_byte': law.loss(size),
      'held_out': law.held_out,
      'beyond': law.beyond(size),
      'about': law.about,
    }
  return row
