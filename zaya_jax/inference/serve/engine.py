# SPDX-License-Identifier: Apache-2.0
"""Which text is continued when: continuous batching in a thread of its own.

A turn of the thread gives waiting jobs the slots that are free, reads one piece
of one prompt, and starts one program that makes tokens for every slot whose
prompt was read. It looks at the tokens of a program while the next one runs. So
a long prompt delays the others by a piece at a time, and a job that ends or is
cancelled gives its slot to the next one without waiting for the rest.
"""

import collections
import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from pipelines import tokenizer as tokenizer_lib
from zaya_jax.inference import continuation
from zaya_jax.inference.decoding import slots as slots_lib

STOP, LENGTH, ERROR = 'stop', 'length', 'error'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Token:
  """A token and how likely it was.

  Attributes:
    id: of the token.
    logprob: before temperature; None: not asked for, or nothing is before it.
    top: ids of the likeliest tokens there, with theirs, best first.
  """

  id: int
  logprob: float | None = None
  top: tuple[tuple[int, float], ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
  """What is new of a job.

  Attributes:
    text: characters that are sure to stay.
    tokens: that were made.
    prompt: the tokens of the prompt, where they were asked for.
    finish: STOP, LENGTH or ERROR with the last event; None before.
  """

  text: str = ''
  tokens: tuple[Token, ...] = ()
  prompt: tuple[Token, ...] = ()
  finish: str | None = None


@dataclasses.dataclass(eq=False, kw_only=True)
class Job:
  """A text to continue.

  Attributes:
    ids: the prompt, [L] int32, not empty.
    max_tokens: the most to add; with 0 only the prompt is read.
    tell: called with each event, in the engine's thread; must not block.
    temperature: 0: the likeliest token.
    top_p: samples from the likeliest tokens of this total probability.
    seed: of the samples.
    stop: texts before which it ends.
    scored: whether tokens come with their probability.
    prompt_scored: whether those of the prompt do.
  """

  ids: np.ndarray
  max_tokens: int
  tell: Callable[[Event], None]
  temperature: float = 0.0
  top_p: float = 1.0
  seed: int = 0
  stop: Sequence[str] = ()
  scored: bool = False
  prompt_scored: bool = False
  # The engine's own.
  read: int = 0  # Tokens of the prompt, which the cache holds.
  is_read: bool = False  # All but the last: takes part in the step.
  asked: int = 0  # Tokens that programs were started for.
  made: int = 0
  done: bool = False
  text: Any = None
  pieces: list[Any] = dataclasses.field(default_factory=list)


class FullError(RuntimeError):
  """There is no place in the queue."""


class ClosedError(RuntimeError):
  """The engine takes no jobs: it ends, or has failed."""


class Engine:
  """Runs jobs in the slots of one model.

  Args:
    slots: of the model.
    tokenizer: of the model.
    queue: jobs that may wait for a slot.

  Attributes:
    failure: what ended the thread; None: nothing.
  """

  def __init__(
    self,
    slots: slots_lib.Slots,
    tokenizer: tokenizer_lib.Tokenizer,
    queue: int = 64,
  ):
    self._slots, self._tokenizer, self._most = slots, tokenizer, queue
    self._condition = threading.Condition()
    self._waiting: collections.deque[Job] = collections.deque()
    self._cancelled: set[Job] = set()
    self._in: list[Job | None] = [None] * slots.count
    self._running: collections.deque[Any] = collections.deque()
    self._closed = False
    self.failure: BaseException | None = None
    self._thread = threading.Thread(
      target=self._run, name='engine', daemon=True
    )

  @property
  def waiting(self) -> int:
    """Jobs without a slot."""
    return len(self._waiting)

  @property
  def busy(self) -> int:
    """Slots with a job."""
    return sum(job is not None for job in self._in)

  @property
  def room(self) -> int:
    """Jobs that may be given at once when nothing else is there."""
    return self._most + self._slots.count

  def start(self) -> None:
    """Begins to work."""
    self._thread.start()

  def submit(self, jobs: Sequence[Job]) -> None:
    """Takes all of some jobs, or none.

    Raises:
      FullError: if there is no place for them.
      ClosedError: if the engine takes no jobs any more.
    """
    with self._condition:
      if self._closed or self.failure:
        raise ClosedError('The server is about to end.')
      if len(self._waiting) + self.busy + len(jobs) > self.room:
        raise FullError('All slots are taken and the queue is full.')
      self._waiting.extend(jobs)
      self._condition.notify()

  def cancel(self, jobs: Sequence[Job]) -> None:
    """Ends jobs that nobody waits for; those that are done are left alone."""
    with self._condition:
      self._cancelled.update(job for job in jobs if not job.done)
      self._condition.notify()

  def close(self) -> None:
    """Ends the thread, and with an ERROR all jobs that are not done."""
    with self._condition:
      self._closed = True
      self._condition.notify()
    self._thread.join()

  def _run(self) -> None:
    try:
      while self._assign():
        self._read()
        self._step()
    # What jax raises here has no class of its own; nobody must wait for ever.
    except BaseException as error:
      self.failure = error
      raise
    finally:
      with self._condition:
        self._closed = True
        left = [*self._waiting, *(job for job in self._in if job)]
        self._waiting.clear()
        self._in = [None] * self._slots.count
      for job in left:
        job.done = True
        job.tell(Event(finish=ERROR))

  def _assign(self) -> bool:
    """Waits for work, and gives free slots to those who wait."""
    with self._condition:
      while not (
        self._closed or self._waiting or self._cancelled or any(self._in)
      ):
        self._running.clear()  # Of jobs that are done.
        self._condition.wait()
      cancelled, self._cancelled = self._cancelled, set()
      waiting = [job for job in self._waiting if job not in cancelled]
      for slot, job in enumerate(self._in):
        if job in cancelled:
          self._leave(slot, job)
      for slot, job in enumerate(self._in):
        if job is None and waiting:
          self._in[slot] = waiting.pop(0)
      self._waiting = collections.deque(waiting)
      return not self._closed

  def _read(self) -> None:
    """Reads a piece of the prompt that came first."""
    slot, job = next(
      ((s, job) for s, job in enumerate(self._in) if job and not job.is_read),
      (0, None),
    )
    if job is None:
      return
    count = self._slots.piece(len(job.ids) - 1 - job.read)
    if count or not job.read:  # A single token: the slot begins anew.
      found = self._slots.read(slot, job.ids, job.read, job.prompt_scored)
      job.pieces.append((count, found))
      job.read += count
    if job.read < len(job.ids) - 1:
      return
    job.is_read = True
    job.text = continuation.Continuation(self._tokenizer, job.stop)
    prompt = self._prompt(job)
    if not job.max_tokens:
      self._finish(slot, job, Event(prompt=prompt, finish=LENGTH))
      return
    if prompt:
      job.tell(Event(prompt=prompt))
    self._slots.start(
      slot,
      int(job.ids[-1]),
      job.max_tokens,
      temperature=job.temperature,
      top_p=job.top_p,
      seed=job.seed,
      scored=job.scored,
    )

  def _prompt(self, job) -> tuple[Token, ...]:
    """The tokens of a prompt, if they were asked for."""
    pieces, job.pieces = job.pieces, []
    if not job.prompt_scored:
      return ()
    tokens = [Token(id=int(job.ids[0]))]
    for count, found in pieces:
      found = jax.device_get(found)
      for i in range(count):
        at = {name: values[i] for name, values in found.items()}
        tokens.append(_token(job.ids[len(tokens)], at))
    return tuple(tokens)

  def _step(self) -> None:
    """Starts a program for those who need tokens, and looks at an older one."""
    jobs = [
      (slot, job)
      for slot, job in enumerate(self._in)
      if job and job.is_read and job.asked < job.max_tokens
    ]
    if jobs:
      self._running.append((jobs, self._slots.step()))
      for _, job in jobs:
        job.asked += self._slots.steps
    if self._running and (len(self._running) > 1 or not jobs):
      self._look(*self._running.popleft())

  def _look(self, jobs, found) -> None:
    """Tells jobs what a program has made for them."""
    scored = any(job.scored for _, job in jobs)
    found = jax.device_get(found if scored else {'tokens': found['tokens']})
    for slot, job in jobs:
      if not job.done:
        at = {name: values[:, slot] for name, values in found.items()}
        self._tell(slot, job, at)

  def _tell(self, slot, job, found) -> None:
    """Takes the tokens [N] of one job."""
    new, finish = [], None
    for i, token in enumerate(found['tokens'].tolist()):
      if token < 0:
        finish = STOP
        break
      at = {k: v[i] for k, v in found.items()} if job.scored else {}
      new.append(_token(token, at))
      job.made += 1
      job.text.push(token)
      if job.text.done:
        finish = STOP
      elif job.made == job.max_tokens:
        finish = LENGTH
      if finish:
        break
    if finish:
      job.text.finish()
    event = Event(text=job.text.take(), tokens=tuple(new), finish=finish)
    if finish:
      self._finish(slot, job, event)
    else:
      job.tell(event)

  def _finish(self, slot, job, event) -> None:
    self._leave(slot, job)
    job.tell(event)

  def _leave(self, slot, job) -> None:
    """Frees a slot."""
    job.done = True
    self._in[slot] = None
    if job.asked:  # It may be in the middle of a text.
      self._slots.end(slot)


def _token(id_: int, at: dict[str, np.ndarray]) -> Token:
  """A token with what `sampling.scores` says where it stands."""
  if not at:
    return Token(id=int(id_))
  return Token(
    id=int(id_),
    logprob=float(at['logprob']),
    top=tuple(
      zip(at['top_ids'].tolist(), at['top_logprobs'].tolist(), strict=True)
    ),
  )
