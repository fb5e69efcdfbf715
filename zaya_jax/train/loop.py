# SPDX-License-Identifier: Apache-2.0
"""The loop over steps, and what it does now and then between them."""

import time
from typing import Any

import jax
import numpy as np

from ops import dispatch
from zaya_jax.checkpoint import meta
from zaya_jax.config import exit_codes
from zaya_jax.inference import model as model_lib
from zaya_jax.inference import score
from zaya_jax.optim import groups
from zaya_jax.parallel import batch as batch_lib
from zaya_jax.parallel import mesh as mesh_lib
from zaya_jax.runtime import beats, processes, run_files, stop
from zaya_jax.runtime import compiled as compiled_lib
from zaya_jax.train import guard
from zaya_jax.train import start as start_lib
from zaya_jax.train import step as step_lib


class NumericsError(RuntimeError):
  """Too many steps in a row were refused."""

  exit_code = exit_codes.NUMERICS


class Loop:
  """Training, from a state to `num_steps`.

  Args:
    config: of the run.
    mesh: of all devices.
    corpus: the data, whose position the loop moves.
    saved: where checkpoints go.
    report: hears of each step.
    page: of the run.
  """

  def __init__(self, config, mesh, corpus, saved, report, page):
    self.config, self.mesh, self.corpus = config, mesh, corpus
    self.saved, self.report, self.page = saved, report, page
    self.guard = guard.Guard(config, mesh, self._incident)
    self.eval_step = jax.jit(
      score.make_eval_step(config.model, config.mesh.context_mode)
    )
    self.scores: dict[str, float] = {}  # Of this step, for its checkpoint.
    self.tokens = 0

  def run(self, start: start_lib.Start, signal: stop.StopSignal) -> int:
    """Runs to `num_steps` or to a signal; returns the exit code."""
    config, loader, report = self.config, self.corpus.loader, self.report
    state = start.state
    self.fast = start.fast
    self.tokens, measured, keep = start.tokens, None, None
    for note in (*start.notes, *_groups(config, state.params)):
      report.note(note)
    for step in range(start.step + 1, config.num_steps + 1):
      waited, window = time.monotonic(), loader.state
      self.scores = {}
      beats.enter('data', step)
      batch = batch_lib.put_batch(self.mesh, next(loader))
      waited = time.monotonic() - waited
      if measured is None:
        beats.enter('compile')
        compiled, keep = self._compile(state, batch)
        self.guard.watch(compiled, state)
      beats.enter('step', step)
      state, new = self.guard.step(step, state, batch, window)
      tokens = config.data.batch_size * config.data.seq_len
      report.push(step, new, tokens=tokens, data_s=waited)
      self.tokens += tokens
      self._check_numerics(measured)  # Of the step before: nothing stalls.
      if measured is not None:
        beats.finish(step - 1)
        if keep:
          keep()
          keep = None
      measured = new
      state, stopping = self._between(step, state, measured, signal)
      if stopping:
        name = processes.stop_at(step, signal.name)
        report.note(f'{name}: stopped after step {step}')
        self._finish()
        return exit_codes.STOPPED
    self._finish()
    return 0

  def _finish(self) -> None:
    beats.enter('end')
    newest = self.saved.newest_saved()
    self.report.finish(
      checkpoint=None if newest is None else self.saved.directory(newest)
    )

  def _compile(self, state, batch):
    """The step, and what is to be called with it once it has run."""
    settings = step_lib.settings(self.config)
    devices = tuple(self.mesh.devices.flat)
    kept = compiled_lib.Program(settings, (state, batch), devices)
    if compiled := kept.load():
      self.report.note('the training step was compiled before')
    else:
      step = step_lib.make_train_step(self.config, hold=True)
      step = jax.jit(step, donate_argnums=0)
      compiling = self.report.compiling('the training step')
      with compiling, kept.compiling(), jax.set_mesh(self.mesh):
        options = step_lib.compiler_options()
        compiled = step.lower(state, batch).compile(compiler_options=options)
      kept.take(compiled)
    processes.barrier('compiled')
    for note in dispatch.notes():
      self.report.note(note)
    return compiled, kept.save

  def _between(self, step, state, measured, signal) -> tuple[Any, bool]:
    """Evaluates, samples and saves where it is time.

    Returns:
      The state, and whether to stop here.
    """
    config, last = self.config, step == self.config.num_steps
    if last:
      state = self.guard.settle(state)
      self._check_numerics(measured)
    if last or not processes.stop_at(
      step, signal.name
    ):  # Who asks to stop does not wait for minutes.
      beats.enter('eval')
      if last or _is_due(step, config.eval.every):
        self._evaluate(step, state)
      if last or _is_due(step, config.log.sample_every):
        self._sample(step, state)
        processes.barrier('sampled')
    if self.page.is_due():
      with self.report.aside('writing the page'):
        self.page.write()
    # Read once: it may come at any time.
    stopping = bool(processes.stop_at(step, signal.name)) and not last
    if self.fast and self.fast.is_due(step) and not last:
      state = self.guard.settle(state)
      if not int(measured['optim/bad_steps']):
        self.guard.confirm(step, state)
        index = self.corpus.loader.state
        with self.report.aside('copying'):
          about = self._about(measured)
          self.fast.save(step, state, data_index=index, meta=about)
    if last or stopping or _is_due(step, config.checkpoint.every):
      beats.enter('save', step)
      state = self.guard.settle(state)
      self.guard.confirm(step, state)
      # While steps are bad they must not push out the states to go back to.
      if int(measured['optim/bad_steps']) and not (last or stopping):
        self.report.note(f'step {step} is not saved: it was refused')
      else:
        self._save(step, state, measured, urgent=last or stopping)
    if last or stopping:
      self.saved.wait()
      if self.fast:
        self.fast.close(done=last)
    return state, stopping

  def _evaluate(self, step, state) -> None:
    val = self.corpus.val
    if val is None:
      return
    with self.report.aside('evaluating'), jax.set_mesh(self.mesh):
      nats, tokens = score.score(
        self.eval_step,
        self.mesh,
        state.params,
        state.buffers,
        self.corpus.val_batches(self.config.eval.batches),
      )
    values = {'val/loss': nats / tokens}
    values['val/bpb'] = score.bits_per_byte(
      values['val/loss'], val.bytes_per_token
    )
    self.scores = dict(values)
    if val.zlib_bits_per_byte:
      values['val/zlib_bpb'] = val.zlib_bits_per_byte
    self.report.evaluation(step, values)

  def _sample(self, step, state) -> None:
    tokenizer, how = self.corpus.tokenizer, self.config.generate
    params, buffers = mesh_lib.off_mesh((state.params, state.buffers))
    if processes.process():
      return  # All have gathered them; one is enough to sample.
    model = model_lib.Model(
      config=self.config.model,
      params=params,
      buffers=buffers,
      tokenizer=tokenizer,
      stop_ids=tokenizer.stop_ids,
    )
    with self.report.aside('sampling'):
      (text,) = model.generate(
        self.config.prompt,
        max_tokens=how.max_tokens,
        temperature=how.temperature,
        top_p=how.top_p,
        seed=_sample_seed(state.rng, step),
      )
    self.report.sample(step, self.config.prompt, text)

  def _about(self, measured) -> dict[str, Any]:
    loss = float(np.asarray(measured['train/loss']))
    return meta.describe(
      self.config,
      flags=self.config.to_flagfile(),
      tokenizer_sha256=self.corpus.tokenizer.sha256,
      dataset_sha256=self.corpus.sha256,
      tokens=self.tokens,
      metrics={**self.scores, 'train/loss': loss},
    )

  def _save(self, step, state, measured, urgent) -> None:
    about = self._about(measured)
    started = time.monotonic()
    with self.report.aside('saving'):
      accepted = self.saved.save(
        step,
        state,
        data_index=self.corpus.loader.state,
        meta=about,
        urgent=urgent,
      )
    if accepted:
      self.report.saved(step, time.monotonic() - started)

  def _incident(self, kind, step, seen, process, good_step) -> None:
    """Tells of a step or a device that cannot be trusted."""
    self.report.note(seen)
    if processes.process() == 0:
      run_files.incident(
        self.config.run_dir,
        kind=kind,
        step=step,
        seen=seen,
        rank=process,
        good_step=good_step,
        source='trainer',
      )

  def _check_numerics(self, measured: dict[str, Any] | None) -> None:
    limit = self.config.optim.max_bad_steps
    if measured is None or int(measured['optim/bad_steps']) < limit:
      return
    newest = self.saved.newest_saved()
    good = 'none was saved' if newest is None else self.saved.directory(newest)
    raise NumericsError(
      f'{limit} steps in a row were refused, for NaN, Inf or a spike '
      f'(--optim.max_bad_steps={limit}): none of them was applied. The last '
      f'good checkpoint: {good}. Lower --optim.lr={self.config.optim.lr}, look '
      'at the data, or raise --guard.spike_limit='
      f'{self.config.guard.spike_limit:g}.'
    )


def _is_due(step: int, every: int) -> bool:
  return every > 0 and step % every == 0


def _sample_seed(rng: jax.Array, step: int) -> int:
  """A seed for the samples of one step, from the key of the run."""
  return (int(np.asarray(rng)[-1]) + step) % 2**31


def _groups(config, params) -> list[str]:
  """Which optimizer updates which parameters, one line a group."""
  table = list(groups.table(params, optimizer=config.optim.name))
  lines = []
  for group, meaning in groups.MEANING.items():
    rows = [row for row in table if row[1] == group]
    names = ' '.join(name.removeprefix('layers/') for name, *_ in rows)
    if rows:
      lines.append(f'{meaning}: {sum(row[3] for row in rows):,} in {names}')
  return lines
