# SPDX-License-Identifier: Apache-2.0
"""Which text is continued when: continuous batching in a thread of its own.

A turn of the thread gives waiting jobs the slots that are free, reads pieces of
prompts, as many as take no longer than what follows, and starts one program
that makes tokens for every slot whose prompt was read. It looks at the
tokens of a program while the next one runs. So a long prompt delays the others
by no more than their own steps, and a job that ends or is cancelled gives its
slot to the next one without waiting for the rest.
"""

import collections
import threading
import time
from collections.abc import Sequence
from typing import Any

import jax

from pipelines import tokenizer as tokenizer_lib
from zaya_jax.inference import continuation
from zaya_jax.inference.decoding import slots as slots_lib
from zaya_jax.inference.serve import jobs as jobs_lib
from zaya_jax.inference.serve import readers as readers_lib

# On a GPU a program of one piece takes about as long as so many steps, and one
# of several pieces as long as so many of one.
_STEPS_OF_A_PIECE, _SEVERAL = 2, 2
_COMPILING_S = 0.01  # Between two looks at whether a program is there.


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
    self._waiting: collections.deque[jobs_lib.Job] = collections.deque()
    self._cancelled: set[jobs_lib.Job] = set()
    self._in: list[jobs_lib.Job | None] = [None] * slots.count
    self._readers = readers_lib.Readers(slots)
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

  def submit(self, jobs: Sequence[jobs_lib.Job]) -> None:
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

  def cancel(self, jobs: Sequence[jobs_lib.Job]) -> None:
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
        left = max(1, self._slots.steps // _STEPS_OF_A_PIECE)
        while left > 0 and (count := self._read()):
          left -= 1 if count == 1 else _SEVERAL
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
        job.tell(jobs_lib.Event(finish=jobs_lib.ERROR))

  def _assign(self) -> bool:
    """Waits for work, and gives free slots to those who wait."""
    with self._condition:
      while not (
        self._closed or self._waiting or self._cancelled or any(self._in)
      ):
        self._running.clear()  # Of jobs that are done.
        self._condition.wait()
      cancelled, self._cancelled = self._cancelled, set()
      for job in cancelled:
        job.done = True
      waiting = [job for job in self._waiting if not job.done]
      for slot, job in enumerate(self._in):
        if job in cancelled:
          self._leave(slot, job)
      for slot, job in enumerate(self._in):
        if job is None and waiting:
          self._in[slot] = waiting.pop(0)
          self._readers.add(slot, self._in[slot])
      self._waiting = collections.deque(waiting)
      return not self._closed

  def _read(self) -> int:
    """Reads pieces of the prompts that came first; how many."""
    turn = self._readers.next()
    if not turn and 0 < len(self._readers) == self.busy:
      time.sleep(_COMPILING_S)  # There is nothing else to do.
    self._readers.read(turn)
    for slot, job in turn.items():
      if job.read >= len(job.ids) - 1:
        self._readers.remove(slot)
        self._begin(slot, job)
    return len(turn)

  def _begin(self, slot, job) -> None:
    """The text of a job whose prompt was read."""
    job.is_read = True
    job.text = continuation.Continuation(self._tokenizer, job.stop)
    prompt = self._prompt(job)
    if not job.max_tokens:
      self._finish(
        slot, job, jobs_lib.Event(prompt=prompt, finish=jobs_lib.LENGTH)
      )
      return
    if prompt:
      job.tell(jobs_lib.Event(prompt=prompt))
    self._slots.start(
      slot,
      int(job.ids[-1]),
      job.max_tokens,
      temperature=job.temperature,
      top_p=job.top_p,
      seed=job.seed,
      scored=job.scored,
      no_repeat=job.no_repeat,
      ids=job.ids[:-1],
    )

  def _prompt(self, job) -> tuple[jobs_lib.Token, ...]:
    """The tokens of a prompt, if they were asked for."""
    pieces, job.pieces = job.pieces, []
    if not job.prompt_scored:
      return ()
    tokens = [jobs_lib.Token(id=int(job.ids[0]))]
    for count, found in pieces:
      found = jax.device_get(found)
      for i in range(count):
        at = {name: values[i] for name, values in found.items()}
        tokens.append(jobs_lib.token(job.ids[len(tokens)], at))
    return tuple(tokens)

  def _step(self) -> None:
    """Starts a program for those who need tokens, and looks at an older one."""
    jobs = [
      (slot, job)
      for slot, job in enumerate(self._in)
      if job and job.is_read and not job.is_asked
    ]
    if jobs:
      taking = [slot for slot, _ in jobs]
      self._running.append((jobs, self._slots.step(taking)))
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
        finish = jobs_lib.STOP
        break
      at = {k: v[i] for k, v in found.items()} if job.scored else {}
      new.append(jobs_lib.token(token, at))
      job.made += 1
      job.text.push(token)
      if job.text.done:
        finish = jobs_lib.STOP
      elif job.made == job.max_tokens:
        finish = jobs_lib.LENGTH
      if finish:
        break
    if finish:
      job.text.finish()
    event = jobs_lib.Event(
      text=job.text.take(), tokens=tuple(new), finish=finish
    )
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
    if job.is_read:  # The device may be in the middle of the text.
      self._slots.end(slot)
    else:
      self._readers.remove(slot)
