# SPDX-License-Identifier: Apache-2.0
"""Copies of the newest states in the memory of hosts, and on their disks.

Each process keeps its part of the state and that of a neighbour on another
host, so that what one host loses another has. Every copy is sealed as a
checkpoint is. A restore takes the newest state of which somebody holds each
part; it hashes the files before a byte of them is sent, and compares the
fingerprint of the whole before anybody trains with it.
"""

import collections
import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import os
import socket
import threading
from typing import Any

import jax

from zaya_jax import config as config_lib
from zaya_jax.checkpoint import arrays, errors, fingerprint, folders, seal
from zaya_jax.checkpoint.reading import ownership
from zaya_jax.checkpoint.writing import copies, neighbours
from zaya_jax.checkpoint.writing import parts as parts_lib
from zaya_jax.runtime import processes, run_files, supervised


@dataclasses.dataclass(frozen=True)
class Copy:
  """A restored state; `where` says in words where its parts came from."""

  step: int
  state: Any
  meta: dict[str, Any]
  where: str


class FastTier:
  """The fast copies of one run; nothing of it fails a run.

  Args:
    run_dir: the run directory, whose checkpoints are the last resort.
    config: `fast` of it, DIR@STEPS of each tier, the fastest first.
    mesh: of the run.
    like: the state as `parts.Parts` takes it.
  """

  def __init__(
    self,
    run_dir: str,
    config: config_lib.CheckpointConfig,
    mesh: jax.sharding.Mesh,
    like: Any,
  ):
    self._process, self._count = processes.process(), processes.processes()
    self._root = folders.root(run_dir)
    run = processes.first_says(lambda: run_files.run_id(run_dir))
    self._tiers = []
    for tier in config.fast:
      folder, _, every = tier.rpartition('@')
      folder = folder.replace('{process}', str(self._process))
      self._tiers.append((copies.private(folder, run), int(every)))
    self._parts = parts_lib.Parts(mesh, like)
    skip = supervised.place().skip if supervised.place() else (0, 0)
    # What must be equal for a copy to be of use. After a rollback `skip` is not
    # what it was, and what was copied before is of a past that is undone.
    self._about = {
      'run': run,
      'processes': self._count,
      'mesh': list(mesh.shape.items()),
      'skip': skip,
      'arrays': arrays.describe(like),
    }
    self._about = json.loads(json.dumps(self._about))
    ahead = neighbours.ahead(processes.all_say(socket.gethostname()))
    self._moves = [(i, (i + ahead) % self._count) for i in range(self._count)]
    self._behind = (self._process - ahead) % self._count
    self._writing: threading.Thread | None = None
    for folder, _ in self._tiers:
      for name in copies.strangers(self._holder(folder)):
        path = os.path.join(self._holder(folder), name)
        logging.warning('%s is ignored: it is no copy of a state.', path)

  def is_due(self, step: int) -> bool:
    """Whether a state is to be copied after `step`."""
    return any(step % every == 0 for _, every in self._tiers)

  def save(
    self, step: int, state: Any, *, data_index: int, meta: dict[str, Any]
  ) -> None:
    """Starts to copy a state where it is time; waits for the copy before.

    Args:
      step: done.
      state: may be donated as soon as this returns.
      data_index: the position in the data.
      meta: of `meta.describe`.
    """
    due = [folder for folder, every in self._tiers if step % every == 0]
    if not due:
      return
    self.wait()
    with contextlib.suppress(OSError):  # It is asked again for checkpoints.
      ownership.check_fence()
    prints = fingerprint.of_tree(state)
    moves = self._moves if self._count > 1 else []
    cut = self._parts.cut(state, moves)
    owners = [self._process, self._behind][: len(cut)]
    facts = {
      **self._about,
      'step': step,
      'shared': processes.first_says(lambda: max(self._shared(), default=0)),
      'data_index': data_index,
      'meta': meta,
    }

    def write():
      facts['fingerprint'] = fingerprint.to_json(prints)
      for folder in due:
        self._write(folder, facts, dict(zip(owners, cut, strict=True)))

    self._writing = threading.Thread(target=write, daemon=True)
    self._writing.start()

  def wait(self) -> None:
    """Waits until the newest copy is written."""
    if self._writing:
      self._writing.join()
      self._writing = None

  def restore(self) -> Copy | None:
    """The newest state that all parts are left of; all processes call it.

    Of a step that is not older than the newest checkpoint, good or not.
    """
    shared = processes.first_says(self._shared)
    at_least = max(shared, default=0)
    offers = processes.all_say(self._scan(at_least, {0, *shared}))
    offers = [{(tuple(k), o): p for k, o, p in said} for said in offers]
    while chosen := neighbours.choose(offers, self._count):
      key, givers = chosen
      mine = [
        owner for owner, giver in givers.items() if giver == self._process
      ]
      paths = [offers[self._process][key, owner] for owner in mine]
      broken = [o for o, p in zip(mine, paths, strict=True) if self._is_bad(p)]
      said = processes.all_say(broken)
      for offer, owners in zip(offers, said, strict=True):
        for owner in owners:
          del offer[key, owner]
      if any(said):
        continue
      facts = processes.all_say(seal.read(paths[0]) if paths else None)
      facts = next(fact for fact in facts if fact)
      state = self._join(paths, givers)
      found = fingerprint.to_json(fingerprint.of_tree(state))
      if wrong := fingerprint.differences(facts['fingerprint'], found):
        logging.warning('Fast copy of step %d: %s is wrong.', key[0], wrong[0])
        for offer in offers:
          for owner in givers:
            offer.pop((key, owner), None)
        continue
      where = self._tiers[key[1]][0]
      if lost := sum(owner != giver for owner, giver in givers.items()):
        where += f', {lost} of {self._count} parts of it from neighbours'
      about = {k: facts[k] for k in ('arrays', 'data_index')}
      return Copy(key[0], state, {**facts['meta'], **about}, where)
    return None

  def close(self, *, done: bool) -> None:
    """Waits for the newest copy; removes all if the run is complete."""
    self.wait()
    for folder, _ in self._tiers if done else ():
      copies.clear(self._holder(folder))

  def _shared(self) -> list[int]:
    return folders.steps(self._root)

  def _holder(self, folder: str) -> str:
    return os.path.join(folder, str(self._process))

  def _write(self, folder, facts, parts) -> None:
    """Writes parts by their owners; what goes wrong is a warning."""
    holder = self._holder(folder)
    writers = {
      owner: functools.partial(self._parts.write, part=part)
      for owner, part in parts.items()
    }
    try:
      copies.write(holder, facts, writers)
    except (OSError, errors.CheckpointError) as error:
      logging.warning(
        'The fast copy of step %d was not written to %s: %s; checkpoints are.',
        facts['step'],
        holder,
        errors.cause(error),
      )

  def _scan(self, at_least, shared) -> list[tuple[neighbours.Key, int, str]]:
    """What this process could give; nothing is read but seals."""
    return [
      (key, facts['owner'], path)
      for tier, (folder, _) in enumerate(self._tiers)
      for path, facts in copies.sealed(folder)
      if (key := self._key(tier, facts, shared)) and key[0] >= at_least
    ]

  def _key(self, tier, facts, shared) -> neighbours.Key | None:
    """None if a copy is of another run, mesh or past."""
    same = all(facts.get(k) == value for k, value in self._about.items())
    if not same or facts.get('shared') not in shared:
      return None
    whole = json.dumps([facts['fingerprint'], facts['data_index']])
    return facts['step'], tier, hashlib.sha256(whole.encode()).hexdigest()

  def _is_bad(self, path) -> bool:
    try:
      seal.verify(path)
    except (OSError, errors.CheckpointError) as error:
      logging.warning('A fast copy is not used: %s', error)
      return True
    return False

  def _join(self, paths, givers) -> Any:
    """Reads and distributes parts; the turns of givers keep them apart."""
    moves: list[list[parts_lib.Move]] = []
    turns = collections.Counter()
    for owner, giver in sorted(givers.items()):
      if turns[giver] == len(moves):
        moves.append([])
      moves[turns[giver]].append((giver, owner))
      turns[giver] += 1
    with contextlib.ExitStack() as open_:
      files = [
        open_.enter_context(open(os.path.join(path, copies.FILE), 'rb'))
        for path in paths
      ]
      files += [None] * (len(moves) - len(files))
      return self._parts.join(files, moves)
