# SPDX-License-Identifier: Apache-2.0
"""Training, from its settings to its exit code: the page to read first."""

import contextlib
import dataclasses
import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any

import jax

from ops import dispatch
from zaya_jax import config as config_lib
from zaya_jax import metrics
from zaya_jax.checkpoint import fingerprint, lock, seal, seal_key
from zaya_jax.checkpoint.writing import manager
from zaya_jax.config import exit_codes
from zaya_jax.config.recipe import segments
from zaya_jax.data import corpus as corpus_lib
from zaya_jax.data import course as course_lib
from zaya_jax.data.ledger import book as book_lib
from zaya_jax.data.ledger import opening, terms
from zaya_jax.metrics import profile as profile_lib
from zaya_jax.metrics.trackers import following
from zaya_jax.model import flops
from zaya_jax.optim import groups
from zaya_jax.optim import optimizer as optimizer_lib
from zaya_jax.parallel import mesh as mesh_lib
from zaya_jax.plan.cost import machine as machine_lib
from zaya_jax.report import overview
from zaya_jax.runtime import processes, run_files, session, stop, supervised
from zaya_jax.train import guard as guard_lib
from zaya_jax.train import hooks as hooks_lib
from zaya_jax.train import inherit, traced
from zaya_jax.train import loop as loop_lib
from zaya_jax.train import start as start_lib
from zaya_jax.train import state as state_lib
from zaya_jax.train import step as step_lib
from zaya_jax.train import ways as ways_lib
from zaya_jax.train.kept import step as step_kept


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
  with contextlib.ExitStack() as stack:
    open_ = stack.enter_context
    open_(dispatch.use(**vars(config.ops)))
    open_(seal_key.trusting(config.checkpoint.seal_key_file))
    config = open_(session.join(config, _must_agree(config)))
    config = inherit.settings(config.in_steps())
    config = _check(config)
    open_(dispatch.measured(_times(config)))
    open_(_lock(config))
    listen = functools.cache(lambda: open_(stop.StopSignal()))
    follow = open_(following.opened(config, _serve))
    code, more = _train_segment(inherit.length(config), listen, follow)
    while more and code == exit_codes.DONE:
      gc.collect()  # The arrays of the segment before.
      part = inherit.timed(config) if config.hours else config
      code, more = _train_segment(part, listen, follow, again=True)
    return code


def _train_segment(
  config: config_lib.Config,
  listen: Callable[[], stop.StopSignal],
  follow: following.Following,
  again: bool = False,
) -> tuple[int, bool]:
  """Goes on from the newest checkpoint to the end of a segment of the run.

  Args:
    config: of the run; without a recipe it has one segment.
    listen: from when on a signal waits for the end of a step.
    follow: who hears of the run.
    again: this process has trained a segment before.

  Returns:
    The exit code, and whether segments are left.
  """
  with contextlib.ExitStack() as stack:
    open_ = stack.enter_context
    config = course_lib.enter(config)
    mesh = mesh_lib.make_mesh(config.mesh)
    ways = ways_lib.Ways(config, mesh)
    init = state_lib.make_init(config)  # Of model and optimizer.
    corpus = open_(corpus_lib.Corpus(config, mesh_lib.data_shard(mesh)))
    config = config.in_steps(corpus.epoch_tokens)
    config = _with_samples_like(corpus, config)
    saved = open_(manager.Manager(config.run_dir, config.checkpoint))
    start = start_lib.restore_or_init(config, mesh, init, corpus, saved)
    notes = (*corpus.notes, *ways.notes(), *start.notes)
    start = dataclasses.replace(start, notes=notes)
    config = start.config
    compiler = functools.partial(_compile, config, ways)
    _describe(config, mesh, corpus, start)
    page = open_(overview.Live(config, wanted=processes.process() == 0))
    report = open_(_make_reporter(config, mesh, corpus, start, again, follow))
    _tell_optimizer(config, start, report)
    guard = guard_lib.Guard(config, mesh, _incidents(config, report))
    book = _open_ledger(config, corpus, start, report)
    hooks = hooks_lib.Hooks(
      *(config, mesh, corpus, saved, start.fast, guard, report, page, book),
      *(profile_lib.Profile(config, report), start.frozen),
    )
    loop = loop_lib.Loop(
      config, mesh, corpus.loader, compiler, guard, hooks, saved, report, book
    )
    return loop.run(start, listen()), not segments.is_last(config)


def _check(config) -> config_lib.Config:
  """Whether the meshes of all segments can be made and divide what they must.

  Returns:
    The settings with the recipe as it is now, whatever becomes of its file.
  """

  def check_one(config):
    mesh = mesh_lib.make_mesh(config.mesh)
    state_lib.check(config, mesh)
    ways_lib.Ways(config, mesh)  # It must fit.
    if config.ops != config_lib.OpsConfig():  # Named engines may not run.
      traced.trace(config, mesh)

  config = dataclasses.replace(config, course=segments.course(config))
  segments.in_each(config, check_one)
  return config


def _compile(config, ways, state, batch, note):
  """The step in the fastest way that fits."""
  place, options = step_kept.folder(), step_lib.compiler_options(config)

  if size := step_lib.bucket(config):
    note(f'messages of gradients are fused up to {size / 2**20:,.0f} MiB')

  def make(config):
    optimizer = optimizer_lib.of_run(config)
    if not place:
      return step_lib.make_jitted(config, optimizer)
    step = step_lib.make_train_step(config, optimizer, hold=True)
    return step_kept.Step(step, options, config, place, note)

  return ways.compile(make, config, (state, batch), note)


def _times(config) -> list[dispatch.Row]:
  """Engines as --machine has them."""
  return machine_lib.engines(config, jax.devices()[0].device_kind)


def _must_agree(config) -> str:
  """The settings that all processes of a run must share, one a line."""
  place = config_lib.DistributedConfig()
  course = segments.course(config)
  text = course.recipe.text if course else ''
  return dataclasses.replace(config, distributed=place).to_flagfile() + text


def _with_samples_like(corpus, config) -> config_lib.Config:
  """Of conversations, samples are answers, unless a flag says otherwise."""
  if not corpus.has_chats or 'generate.chat' in config.given:
    return config
  how = dataclasses.replace(config.generate, chat=True)
  return dataclasses.replace(config, generate=how)


@contextlib.contextmanager
def _lock(config) -> Iterator[None]:
  """Holds the run directory, unless the supervisor does."""
  mine = processes.process() == 0 and not supervised.place()
  held = lock.RunLock(config.run_dir, needed=False)
  with held if mine else contextlib.nullcontext():
    processes.barrier('locked')
    yield


def _describe(config, mesh, corpus, start) -> None:
  """Writes what the run is into its folder."""
  if processes.process():
    return
  table = groups.table(start.state.params, optimizer=config.optim.name)
  corpus.tokenizer.save(config.run_dir)
  run_files.write(
    config,
    device=mesh.devices.flat[0],
    count=mesh.size,
    optimizer={name: groups.MEANING[group] for name, group, *_ in table},
  )


def _make_reporter(
  config, mesh, corpus, start, again, follow
) -> metrics.Reporter:
  count = flops.parameters(config.model)
  row, length = corpus.loader.state, config.data.seq_len
  return metrics.Reporter(
    config,
    run_dir=config.run_dir,
    num_params=count.total,
    active_params=count.active,
    flops_per_token=flops.per_token(config.model, config.data.seq_len).total,
    epochs=lambda tokens: max(
      corpus.loader.epochs(row + (tokens - start.tokens) // length)
    ),
    device_kind=mesh.devices.flat[0].device_kind,
    num_devices=mesh.size,
    start_step=start.step,
    start_tokens=start.tokens,
    process=processes.process(),
    again=again,
    followers=follow,
  )


def _serve(config, registry) -> Any:
  """Answers Prometheus as a supervisor does; imported if it is asked for."""
  from zaya_jax.aegis.supervisor import endpoint

  port, bind = config.log.metrics_port, config.aegis.bind
  server = endpoint.opened('log.metrics_port', port, bind, registry)
  if warning := endpoint.exposes(bind, port):
    print(warning)
  server.start()
  return server


def _tell_optimizer(config, start, report) -> None:
  """Says, of a recipe, with which optimizer's state a segment begins."""
  if config.course:
    found = fingerprint.to_json(fingerprint.of_tree(start.state))
    word = seal.short_print(found, 'opt_state')
    report.note(f'optimizer state {word} at step {start.step}')


def _open_ledger(config, corpus, start, report) -> book_lib.Book:
  book = opening.open_book(
    config.run_dir,
    terms.of(config, corpus),
    known=start.ledger,
    row=start.row,
    step=start.step,
    reads=terms.reads(config, corpus),
    tell=report.note,
  )
  if (row := corpus.loader.state) > start.row:
    # They may be the rest of the segment before.
    phase = segments.at(segments.segments(config), start.row).phase
    book.leave_out(start.step, (start.row, row), phase)
  return book


def _incidents(config, report) -> guard_lib.Tell:
  """Tells people and machines of a step or a device that is not trusted."""

  def tell(kind, step, seen, process, good_step):
    report.note(seen)
    if processes.process() == 0:
      with report.trying('incidents.jsonl'):
        run_files.incident(
          config.run_dir,
          kind=kind,
          step=step,
          seen=seen,
          rank=process,
          good_step=good_step,
          source='trainer',
        )

  return tell
