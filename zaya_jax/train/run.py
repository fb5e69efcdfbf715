# SPDX-License-Identifier: Apache-2.0
"""Training: config, data, mesh, state, step, and the loop over them."""

import contextlib
import dataclasses

from ops import dispatch
from zaya_jax import config as config_lib
from zaya_jax import metrics
from zaya_jax.checkpoint import lock, seal
from zaya_jax.checkpoint.writing import manager
from zaya_jax.data import corpus as corpus_lib
from zaya_jax.model import flops
from zaya_jax.parallel import mesh as mesh_lib
from zaya_jax.report import overview
from zaya_jax.runtime import beats, processes, rank, run_files, session, stop
from zaya_jax.train import inherit, traced
from zaya_jax.train import loop as loop_lib
from zaya_jax.train import start as start_lib
from zaya_jax.train import state as state_lib


def train(config: config_lib.Config) -> int:
  """Trains from the newest checkpoint in `config.run_dir`, or from scratch.

  Args:
    config: the run.

  Returns:
    The exit code: 0 done, 75 stopped by SIGTERM or Ctrl-C and resumable.

  Raises:
    UsageError: if a setting is wrong.
    DataError: if the data cannot be used.
    CheckpointError: if the run directory is in use, or its checkpoints belong
      to another model or cannot be read.
    NumericsError: if `--optim.max_bad_steps` steps in a row were refused.
    HardwareError: if a device computes or remembers wrong things.
  """
  engines = dispatch.use(**vars(config.ops))
  key = seal.trusting(config.checkpoint.seal_key_file)
  met = session.join(config, _must_agree(config))
  with engines, key, met as config:
    return _train(config)


def _must_agree(config) -> str:
  """The settings that all processes of a run must share, one a line."""
  place = config_lib.DistributedConfig()
  return dataclasses.replace(config, distributed=place).to_flagfile()


def _train(config) -> int:
  first = processes.process() == 0
  config = inherit.settings(config)
  mesh = mesh_lib.make_mesh(config.mesh)
  state_lib.check(config, mesh)
  if config.ops != config_lib.OpsConfig():
    traced.trace(config, mesh)  # A named engine may not run: before the data.
  with contextlib.ExitStack() as open_:
    if first and not rank.place():  # Else the supervisor holds it.
      open_.enter_context(lock.RunLock(config.run_dir))
    processes.barrier('locked')
    shard = mesh_lib.data_shard(mesh)
    corpus = open_.enter_context(corpus_lib.Corpus(config, shard))
    saved = open_.enter_context(
      manager.Manager(config.run_dir, config.checkpoint)
    )
    beats.enter('restore')
    start = start_lib.restore_or_init(config, mesh, corpus, saved)
    if first:
      corpus.tokenizer.save(config.run_dir)
      run_files.write(config, device=mesh.devices.flat[0], count=mesh.size)
    page = open_.enter_context(overview.Live(config, wanted=first))
    report = open_.enter_context(_make_reporter(config, mesh, start))
    signal = open_.enter_context(stop.StopSignal())
    loop = loop_lib.Loop(config, mesh, corpus, saved, report, page)
    return loop.run(start, signal)


def _make_reporter(config, mesh, start) -> metrics.Reporter:
  count = flops.parameters(config.model)
  return metrics.Reporter(
    config,
    run_dir=config.run_dir,
    num_params=count.total,
    active_params=count.active,
    flops_per_token=flops.per_token(config.model, config.data.seq_len).total,
    device_kind=mesh.devices.flat[0].device_kind,
    num_devices=mesh.size,
    start_step=start.step,
    start_tokens=start.tokens,
    process=processes.process(),
  )
