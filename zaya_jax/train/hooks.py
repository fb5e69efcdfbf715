# SPDX-License-Identifier: Apache-2.0
"""What is done between steps: when each is due, and what it does."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from zaya_jax import config as config_lib
from zaya_jax import metrics
from zaya_jax.checkpoint import meta
from zaya_jax.checkpoint.writing import fast as fast_lib
from zaya_jax.checkpoint.writing import manager
from zaya_jax.config.recipe import segments
from zaya_jax.data import corpus as corpus_lib
from zaya_jax.data import history, position
from zaya_jax.data.ledger import book as book_lib
from zaya_jax.hub.adapters import adapter
from zaya_jax.inference import generate, score
from zaya_jax.inference.adapted import moved, preferred
from zaya_jax.metrics import profile as profile_lib
from zaya_jax.model import lora
from zaya_jax.parallel import partition
from zaya_jax.report import overview
from zaya_jax.runtime import beats, processes
from zaya_jax.train import guard as guard_lib
from zaya_jax.train import state as state_lib


@dataclasses.dataclass(kw_only=True)
class Pause:
  """A run between two steps.

  Attributes:
    step: the one that is done.
    state: after it.
    measured: by it.
    tokens: trained on so far.
    last: no step follows in the segment.
    stopping: a signal asks to end here.
  """

  step: int
  state: state_lib.TrainState
  measured: dict[str, Any]
  tokens: int
  last: bool
  stopping: bool

  def at(self, every: int) -> bool:
    """Whether the step is a multiple; of 0 none is."""
    return every > 0 and self.step % every == 0

  @property
  def ends(self) -> bool:
    """Whether the run ends here."""
    return self.last or self.stopping


class Hook(NamedTuple):
  """Something that is done after some steps."""

  run: Callable[[Pause], None]
  is_due: Callable[[Pause], bool]
  reads_state: bool = True  # Then all processes run it, or none does.


class Hooks:
  """The hooks of a run.

  Args:
    config: of the run.
    mesh: of all devices.
    corpus: the data.
    saved: where checkpoints go.
    fast: where copies go; None: nowhere.
    guard: of the steps.
    report: hears what was done.
    page: of the run.
    book: the ledger.
    profile: traces steps.
    frozen: the model that stays as it is; None: there is none.
  """

  def __init__(
    self,
    config: config_lib.Config,
    mesh: jax.sharding.Mesh,
    corpus: corpus_lib.Corpus,
    saved: manager.Manager,
    fast: fast_lib.FastTier | None,
    guard: guard_lib.Guard,
    report: metrics.Reporter,
    page: overview.Live,
    book: book_lib.Book,
    profile: profile_lib.Profile,
    frozen: adapter.Base | None = None,
  ):
    self._config, self._mesh, self._corpus = config, mesh, corpus
    self._frozen, self._profile = frozen, profile
    self._saved, self._fast, self._guard = saved, fast, guard
    self._report, self._page, self._book = report, page, book
    adapts, model = config.lora.rank > 0, config.model
    model = lora.in_a_loop(model) if adapts else model
    self._scored = dataclasses.replace(config, model=model)
    self._dpo_step = jax.jit(preferred.make_eval_step(self._scored))
    self._eval_step = jax.jit(
      score.make_eval_step(model, config.mesh.context_mode)
    )

  def in_order(self) -> list[Hook]:
    """State first: what follows may run out of memory or be interrupted."""
    evals, samples = self._config.eval.every, self._config.log.sample_every
    saves, fast = self._config.checkpoint.every, self._fast
    goes_on = lambda now: not now.stopping  # Who asks to stop does not wait.
    here = segments.current(self._config)
    ends = lambda now: now.last and here.closes  # Of a phase, not of a size.
    return [
      Hook(
        self._end_profile,
        lambda now: self._profile.ends(now.step, now.ends),
        reads_state=False,
      ),
      Hook(self._tell_saved, lambda _: True, reads_state=False),
      Hook(self._copy, lambda now: bool(fast and fast.is_due(now.step))),
      Hook(self._save, lambda now: now.ends or now.at(saves)),
      Hook(
        self._evaluate,
        lambda now: goes_on(now) and (ends(now) or now.at(evals)),
      ),
      Hook(
        self._sample,
        lambda now: (
          goes_on(now) and samples > 0 and (ends(now) or now.at(samples))
        ),
      ),
      Hook(self._write_page, lambda _: self._page.is_due(), reads_state=False),
      Hook(
        self._begin_profile,
        lambda now: not now.ends and self._profile.begins(now.step),
        reads_state=False,
      ),
    ]

  def _begin_profile(self, now):
    with self._report.aside('profiling'):
      self._profile.begin(now.state)

  def _end_profile(self, now):
    with self._report.aside('profiling'):
      self._profile.end(now.state)

  def _copy(self, now):
    if now.last or int(now.measured['optim/bad_steps']):
      return
    self._guard.confirm(now.step, now.state)
    index = self._corpus.loader.state
    with self._report.aside('copying'):
      about = self._about(now) | {book_lib.META: self._book.head(write=False)}
      self._fast.save(now.step, now.state.own(), data_index=index, meta=about)

  def _save(self, now):
    beats.enter('save', now.step)
    self._guard.confirm(now.step, now.state)
    # While steps are bad they must not push out the states to go back to.
    if int(now.measured['optim/bad_steps']) and not now.ends:
      self._report.note(f'step {now.step} is not saved: it was refused')
      return
    with self._report.aside('saving'):
      started = time.monotonic()
      accepted = self._saved.save(
        now.step,
        now.state.own(),
        data_index=self._corpus.loader.state,
        meta=self._about(now) | {book_lib.META: self._book.head(write=True)},
        urgent=now.ends,
      )
    if accepted:
      self._report.paused(now.step, time.monotonic() - started)
    if now.ends:
      self._saved.wait()
      self._tell_saved(now)

  def _tell_saved(self, _):
    """Only what is on disk was saved."""
    for step, seconds in self._saved.sealed():
      self._report.note(f'saved step {step} ({seconds:.2f} s)')

  def _about(self, now):
    about = meta.describe(
      self._config,
      flags=self._config.to_flagfile(),
      tokenizer_sha256=self._corpus.tokenizer.sha256,
      dataset_sha256=self._corpus.sha256,
      tokens=now.tokens,
      metrics={'train/loss': self._report.train_loss},
    )
    if kept := self._frozen:
      about[kept.role] = kept.as_json()
    if course := self._config.course:
      about['phase'] = segments.current(self._config).phase
      about['recipe'] = history.record(course)
    return {**about, position.META: position.describe(self._corpus.loader)}

  def _evaluate(self, now):
    folders = self._corpus.held_out
    if not folders:
      return
    beats.enter('eval')
    with self._report.aside('evaluating'), jax.set_mesh(self._mesh):
      found = [self._score(now.state, folder) for folder in folders]
    values = score.mean(found, [folder.weight for folder in folders])
    kept = ('val/loss', 'val/bpb')
    self._saved.amend(now.step, {name: values[name] for name in kept})
    for folder, one in zip(folders, found, strict=True):
      if len(folders) > 1:
        values[f'val/bpb/{folder.name}'] = one['val/bpb']
    self._report.evaluation(now.step, values)
    if now.last and self._config.lora.rank:
      with self._report.aside('comparing'), jax.set_mesh(self._mesh):
        weights = now.state.weights(self._config.lora.scale)
        arrays = self._mesh, weights, now.state.buffers
        batches = self._corpus.val_batches(folders[0])
        self._report.note(moved.write(self._scored, *arrays, batches))

  def _score(self, state, folder):
    """What one folder gives, under the names of metrics.jsonl."""
    batches = lambda: self._corpus.val_batches(folder)
    weights = state.weights(self._config.lora.scale)
    mesh, buffers = self._mesh, state.buffers
    nats, tokens = score.score(
      self._eval_step, mesh, weights, buffers, batches()
    )
    loss, text = nats / tokens, folder.text
    values = {'val/loss': loss}
    values['val/bpb'] = score.bits_per_byte(loss, text.bytes_per_token)
    if self._config.dpo.beta:
      both = weights, state.reference
      values |= preferred.held_out(
        self._dpo_step, mesh, both, buffers, batches()
      )
    if text.zlib_bits_per_byte:
      values['val/zlib_bpb'] = text.zlib_bits_per_byte
    return values

  def _sample(self, now):
    """Process 0 samples; the others wait for it."""
    beats.enter('eval')
    weights = now.state.weights(self._config.lora.scale)
    arrays = (weights, now.state.buffers)
    if not _is_here(arrays):
      with jax.set_mesh(self._mesh):  # From the processes that have its parts.
        arrays = (jax.jit(partition.unite)(arrays[0]), arrays[1])
    if not _is_here(arrays):
      self._report.note(
        f'no sample of step {now.step}: its parameters are divided among '
        'processes; --mode=generate reads them from a checkpoint'
      )
    elif processes.process() == 0:
      with self._report.aside('sampling'):
        seed = _sample_seed(now.state.rng, now.step)
        tokenizer = self._corpus.tokenizer
        text = generate.sample(self._config, tokenizer, *arrays, seed)
      end = '\n' * self._config.generate.chat  # Of the user's turn.
      self._report.sample(now.step, self._config.prompt + end, text)
    processes.barrier('sampled')

  def _write_page(self, _):
    with self._report.aside('writing the page'):
      self._page.write()


def _is_here(tree: Any) -> bool:
  """Whether this process can read each array whole."""
  leaves = jax.tree.leaves(tree)
  return all(a.is_fully_addressable or a.is_fully_replicated for a in leaves)


def _sample_seed(rng: jax.Array, step: int) -> int:
  """A seed for the samples of one step, from the key of the run."""
  return (int(np.asarray(rng)[-1]) + step) % 2**31
