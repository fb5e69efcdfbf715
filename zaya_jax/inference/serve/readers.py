# SPDX-License-Identifier: Apache-2.0
"""Prompts that are being read, and whose pieces are read together."""

from zaya_jax.inference.decoding import pieces as pieces_lib
from zaya_jax.inference.decoding import slots as slots_lib
from zaya_jax.inference.serve import jobs as jobs_lib


class Readers:
  """The slots whose prompts are being read, in the order in which they came.

  Args:
    slots: of the model.
  """

  def __init__(self, slots: slots_lib.Slots):
    self._slots = slots
    self._jobs: dict[int, jobs_lib.Job] = {}

  def __len__(self) -> int:
    return len(self._jobs)

  def add(self, slot: int, job: jobs_lib.Job) -> None:
    """A job whose prompt is read into a slot from now on."""
    self._jobs[slot] = job

  def remove(self, slot: int) -> None:
    """The job of a slot is read, or ends."""
    del self._jobs[slot]

  def next(self) -> dict[int, jobs_lib.Job]:
    """Slots and jobs whose pieces are the next program; empty: none are.

    That of the prompt that came first, and those of as many others as are of
    its size and fit in. Of prompts that begin alike one is read before the
    others begin, if they then need not read what it leaves.
    """
    found: dict[int, jobs_lib.Job] = {}
    size, most, begun = 0, 1, set()
    for slot, job in self._jobs.items():
      if len(found) == most:
        break
      if job.prompt_scored:
        if found or not self._slots.scores:
          continue
      elif beginning := self._slots.beginning(job.ids):
        if beginning in begun:
          continue
        begun.add(beginning)
      if not job.is_begun:
        job.is_begun = True
        if not job.prompt_scored:
          job.read = job.cached = self._slots.restore(slot, job.ids)
      own = self._slots.pieces.padded(self._piece(slot, job))
      if not found:
        size = own
        most = 1 if job.prompt_scored else self._slots.together(size)
      if own == size:
        found[slot] = job
    return found

  def read(self, turn: dict[int, jobs_lib.Job]) -> None:
    """Reads the pieces of `next`."""
    pieces = [self._piece(slot, job) for slot, job in turn.items()]
    counts = [self._slots.pieces.count(piece) for piece in pieces]
    # A single token is a piece of none: the slot begins anew.
    new = [p for p, n in zip(pieces, counts, strict=True) if n or not p.begin]
    scored = any(job.prompt_scored for job in turn.values())
    found = self._slots.read(new, scored) if new else {}
    for job, count in zip(turn.values(), counts, strict=True):
      job.read += count
      if scored:
        job.pieces.append((count, found))

  def _piece(self, slot, job):
    return pieces_lib.Piece(slot, job.ids, job.read)
