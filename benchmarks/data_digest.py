# SPDX-License-Identifier: Apache-2.0
"""What the digest of the ledger costs in a step: with it and without, in turns.

    python -m benchmarks.data_digest [--flagfile=configs/small.flags] [--FLAG]

Both programs are compiled from the same settings and take turns of some steps
on the same batch; the median of the differences of neighbours counts, over the
median of a step. More flags are those of training.
"""

import argparse
import contextlib
import json
import pathlib
import time
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import record
from zaya_jax import config as config_lib
from zaya_jax.optim import optimizer as optimizer_lib
from zaya_jax.parallel import batch as batch_lib
from zaya_jax.parallel import mesh as mesh_lib
from zaya_jax.train import digest, ways
from zaya_jax.train import state as state_lib
from zaya_jax.train import step as step_lib

_TURN_S = 0.5  # About as long is a turn.


def main() -> None:
  """Measures, prints and keeps the result."""
  name = pathlib.Path(__file__).stem
  parser = argparse.ArgumentParser()
  parser.add_argument('--turns', type=int, default=40)
  parser.add_argument(
    '--output', type=pathlib.Path, default=record.RESULTS / f'{name}_h200.json'
  )
  args, flags = parser.parse_known_args()
  flags = flags or ['--flagfile=configs/small.flags']
  facts = record.circumstances(f'benchmarks.{name}', ('jax', 'jaxlib'))
  config = config_lib.Config.parse(flags)
  result = measure(config, args.turns)
  print(json.dumps(result, indent=2))
  record.write(args.output, {**facts, 'flags': flags, **result})


def measure(config: config_lib.Config, turns: int) -> dict:
  """Times of a step with and without a digest, in seconds."""
  mesh = mesh_lib.make_mesh(config.mesh)
  config = ways.Ways(config, mesh).apply(config)  # As the run would be.
  rng = np.random.default_rng(0)
  shape = config.data.batch_size, config.data.seq_len
  ids = lambda: rng.integers(0, config.model.vocab_size, shape, np.int32)
  batch = {
    'tokens': ids(),
    'targets': ids(),
    'weights': np.ones(shape, np.float32),
    'segment_ids': np.ones(shape, np.int32),
    'positions': np.tile(np.arange(shape[1], dtype=np.int32), (shape[0], 1)),
  }
  with jax.set_mesh(mesh):
    batch = batch_lib.put_batch(mesh, batch)
    programs = [_compiled(config, batch, wanted) for wanted in (True, False)]
    states = [jax.jit(state_lib.make_init(config))() for _ in programs]
    size, seconds = 1, np.empty((turns, 2))
    for i, run in enumerate(programs):
      _, states[i] = _timed(run, states[i], batch, 2)
    took, states[1] = _timed(programs[1], states[1], batch, 3)
    size = max(1, round(_TURN_S / took))
    for turn in range(turns):
      # Who begins changes: clocks of devices drift.
      for i in (0, 1) if turn % 2 else (1, 0):
        seconds[turn, i], states[i] = _timed(
          programs[i], states[i], batch, size
        )
  with_it, without = seconds.T
  difference, step_s = np.median(with_it - without), np.median(without)
  spread = np.percentile(with_it - without, [25, 75]) / step_s
  return {
    'device': jax.devices()[0].device_kind,
    'devices': mesh.size,
    'tokens': shape[0] * shape[1],
    'step_s': step_s,
    'digest_s': difference,
    'share': difference / step_s,
    'quartiles': spread.tolist(),
    'turns': turns,
    'steps_of_a_turn': size,
  }


def _compiled(config, batch, wanted):
  """The step of a run; without a digest where none is wanted."""
  nothing = lambda batch: jnp.zeros(4, jnp.uint32)
  optimizer = optimizer_lib.make_optimizer(config.optim, config.num_steps)
  patch = mock.patch.object(digest, 'of_batch', nothing)
  with contextlib.nullcontext() if wanted else patch:
    step = step_lib.make_jitted(config, optimizer)
    state = jax.eval_shape(jax.jit(state_lib.make_init(config)))
    lowered = step.lower(state, batch)
  compiled = lowered.compile()
  text = compiled.as_text()
  assert (f'{0x428A2F98}' in text) == wanted, 'the digest is not where it is'
  return compiled


def _timed(run, state, batch, count):
  """Seconds of a step, the mean of some, and the state after them."""
  jax.block_until_ready(state)
  began = time.perf_counter()
  for _ in range(count):
    state, measured = run(state, batch)
  jax.block_until_ready((state, measured))
  return (time.perf_counter() - began) / count, state


if __name__ == '__main__':
  main()
