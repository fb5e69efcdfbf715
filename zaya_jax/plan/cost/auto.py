# SPDX-License-Identifier: Apache-2.0
"""How a step is computed, where nobody says: the fastest way that fits.

Four settings change speed and memory and not what is learned: whether layers
are written out, what the backward pass recomputes, the Gram form of Muon, and
the parts of a step. What was measured decides, in the order of `_WAYS`, and the
plan's memory. docs/performance.md has the measurements.
"""

import dataclasses
import math
from collections.abc import Iterator

from zaya_jax import config as config_lib
from zaya_jax.config import fields
from zaya_jax.parallel import placement
from zaya_jax.plan.cost import division, memory
from zaya_jax.runtime import chips as chips_lib

# Platform -> (--model.scan_layers, --model.remat), fastest first. On an H200
# layers that are written out take 0.8 of the time of a loop, and `cheap` as
# long as `none`. A loop over layers may need less than the same written out,
# which the plan does not know: it is the last resort. On ROCm nothing was
# measured.
_WAYS = {
  'cpu': (('true', 'none'),),
  'cuda': (('false', 'cheap'), ('false', 'block'), ('true', 'block')),
  'rocm': (('true', 'none'), ('true', 'block')),
}
# Of the memory, which a plan may fill; where it was never compared with what a
# program took on the device, half.
_FILLS = {'cpu': math.inf, 'cuda': 1.0, 'rocm': 0.5}
# Tokens of a part on one device, from which on it is as fast as a larger one:
# with fewer to accumulate costs more than to recompute.
_PART = 16_384
_GRAM_WIDTH = 2048  # Narrower, and its small products are slower (512: 3 %).
_WRONG = 1.1  # A plan may be: beyond that nothing is tried.
_CHIPS = {'mi300x': 'rocm', 'h200': 'cuda', 'h100': 'cuda', 'cpu': 'cpu'}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Way:
  """One way to compute a step.

  Attributes:
    config: of the run, in which nothing is left to decide.
    needs: bytes of a device, planned.
  """

  config: config_lib.Config
  needs: float

  def apply(self, config: config_lib.Config) -> config_lib.Config:
    """The settings of this way in another config of the run."""
    mine = self.config
    return dataclasses.replace(
      config,
      model=config.model.computed_as(mine.model),
      optim=dataclasses.replace(
        config.optim,
        newton_schulz_gram=mine.optim.newton_schulz_gram,
        accumulation=mine.optim.accumulation,
      ),
    )

  def line(self, capacity: float) -> str:
    """The settings as flags, for people."""
    model, optim = self.config.model, self.config.optim
    return (
      f'--model.scan_layers={model.scan_layers} --model.remat={model.remat} '
      f'--optim.newton_schulz_gram={optim.newton_schulz_gram} '
      f'--optim.accumulation={optim.accumulation}: planned '
      f'{self.needs / 1e9:.3g} of {capacity / 1e9:.3g} GB a device'
    )


def of_plan(config: config_lib.Config) -> config_lib.Config:
  """The config with nothing left to decide, for the machine of --plan.*."""
  if not is_open(config):
    return config
  return of_chip(config)[0].config


def of_chip(config: config_lib.Config) -> tuple[Way, chips_lib.Chip]:
  """The fastest way on the machine of --plan.*, and its device."""
  platform, chip = _CHIPS[config.plan.chip], chips_lib.CHIPS[config.plan.chip]
  for each in _candidates(config, platform):  # As `ways`, but no more of them.
    way = Way(config=each, needs=_needs(each, chip.width))
    if way.needs <= chip.memory * _FILLS[platform]:
      return way, chip
  return _on(config, chip)[0], chip


def check_plan(config: config_lib.Config) -> None:
  """Refuses what does not fit into the machine of --plan.* by far.

  Raises:
    UsageError: as `check_fits`.
  """
  chip = chips_lib.CHIPS[config.plan.chip]
  check_fits(_on(config, chip), chip.memory, chip.width)


def _on(config, chip) -> list[Way]:
  return ways(config, _CHIPS[config.plan.chip], chip.memory, chip.width)


def ways(
  config: config_lib.Config, platform: str, capacity: float, width: int
) -> list[Way]:
  """Ways to compute a step that fit by the plan, fastest first.

  Args:
    config: of the run; what it says is kept. `plan.devices` are its devices.
    platform: of `ops.dispatch`.
    capacity: bytes of a device.
    width: bytes of an element in matrix products.

  Returns:
    At least one: if none fits, the one that needs least.
  """
  all_ = [
    Way(config=each, needs=_needs(each, width))
    for each in _candidates(config, platform)
  ]
  fit = [way for way in all_ if way.needs <= capacity * _FILLS[platform]]
  return fit or [min(reversed(all_), key=lambda way: way.needs)]


def next_way(
  ways: list[Way], took: float, capacity: float
) -> tuple[Way | None, list[Way]]:
  """What to try when the first way took more than there is.

  Args:
    ways: of `ways`; the first is the one that was compiled.
    took: bytes of a device, as compiled.
    capacity: of the device.

  Returns:
    The first that fits if its plan is wrong by as much, or the last resort; and
    those from it on. None: there is no other.
  """
  wrong = took / ways[0].needs
  for n, way in enumerate(ways[1:], 1):
    if way.needs * wrong <= capacity or n == len(ways) - 1:
      return way, ways[n:]
  return None, []


def check_fits(ways: list[Way], capacity: float, width: int) -> None:
  """Refuses what does not fit by far, before anything is made.

  Raises:
    UsageError: which says what to lower, and by how much.
  """
  least = ways[-1]
  if least.needs <= _WRONG * capacity:
    return
  dial = least.config.dial
  raise config_lib.UsageError(
    f'{f"--dial={dial}" if dial else "The run"} does not fit: a device has '
    f'{capacity / 1e9:.3g} GB, and with '
    f'--model.remat={least.config.model.remat} in '
    f'{least.config.optim.parts} parts a step needs about '
    f'{least.needs / 1e9:.3g}; {_lower(least.config, capacity, width)}.'
  )


def _lower(config, capacity, width) -> str:
  """What would fit: a smaller dial, shorter rows, else fewer layers."""
  data, model = config.data, config.model
  for n in range(config.dial - 1, 0, -1):
    needs = _needs_at(config, n, width)
    if needs <= capacity:
      return f'--dial={n} needs {needs / 1e9:.3g}'
  for seq_len in _halves(data.seq_len, 256 * config.mesh.context):
    shorter = dataclasses.replace(data, seq_len=seq_len)
    needs = _needs(dataclasses.replace(config, data=shorter), width)
    if needs <= capacity:
      return f'--data.seq_len={seq_len} needs {needs / 1e9:.3g}'
  for layers in range(model.num_layers - 1, 0, -1):
    slides = tuple(n for n in model.sliding_layers if n < layers)
    if bool(slides) != bool(model.sliding_layers):
      break
    fewer = dataclasses.replace(model, num_layers=layers, sliding_layers=slides)
    needs = _needs(dataclasses.replace(config, model=fewer), width)
    if needs <= capacity:
      return (
        f'--model.num_layers={layers} needs {needs / 1e9:.3g}, and more '
        'devices with --mesh.fsdp less each'
      )
  return 'take a smaller --model.d_model or more devices with --mesh.fsdp'


def _needs_at(config, n, width) -> float:
  """Bytes of another dial, computed in the same way."""
  parts = config.optim.parts
  whole = fields.changed(config, {'optim.accumulation': 1}).at_dial(n)
  parts = min(parts, whole.data.batch_size)
  try:
    return _needs(fields.changed(whole, {'optim.accumulation': parts}), width)
  except config_lib.UsageError:  # Its batch is too small for the mesh.
    return math.inf


def _halves(count: int, least: int) -> Iterator[int]:
  while count % 2 == 0 and count // 2 >= least:
    count //= 2
    yield count


def is_open(config: config_lib.Config) -> bool:
  """Whether something is left to decide."""
  model, optim = config.model, config.optim
  settings = (model.remat, model.scan_layers, optim.newton_schulz_gram)
  return 'auto' in settings or not optim.accumulation


def _candidates(config, platform) -> Iterator[config_lib.Config]:
  """Configs with nothing left to decide, fastest first, each once."""
  seen = []
  few, many = _parts(config, platform)
  for n, (scan, remat) in enumerate(_WAYS[platform]):
    last = n == len(_WAYS[platform]) - 1
    for parts in (*few, *many) if last else few:
      found = _with(config, platform, scan, remat, parts)
      if found not in seen:
        seen.append(found)
        yield found


def _parts(config, platform) -> tuple[list[int], list[int]]:
  """Numbers of parts, ascending: of many tokens each, and of few."""
  named = config.optim.accumulation
  if named or platform != 'cuda':
    return [named or 1], []
  layout = division.make(config)
  across = math.prod(layout.sizes[axis] for axis in placement.ROWS)
  rows = config.data.batch_size // across
  numbers = [n for n in range(1, rows + 1) if rows % n == 0]
  large = lambda n: rows // n * layout.columns >= _PART
  few = [n for n in numbers if n == 1 or large(n)]
  return few, numbers[len(few) :]


def _with(config, platform, scan, remat, parts) -> config_lib.Config:
  model, optim = config.model, config.optim
  gram = platform == 'cuda' and model.d_model >= _GRAM_WIDTH
  open_ = lambda value, choice: choice if value == 'auto' else value
  return dataclasses.replace(
    config,
    model=dataclasses.replace(
      model,
      remat=open_(model.remat, remat),
      scan_layers=open_(model.scan_layers, scan),
    ),
    optim=dataclasses.replace(
      optim,
      newton_schulz_gram=open_(optim.newton_schulz_gram, str(gram).lower()),
      accumulation=optim.accumulation or parts,
    ),
  )


def _needs(config, width) -> float:
  return memory.plan(config, division.make(config), width).total
