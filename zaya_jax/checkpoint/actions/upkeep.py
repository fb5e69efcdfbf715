# SPDX-License-Identifier: Apache-2.0
"""Verifies checkpoints, seals old ones and removes those that need not stay."""

import dataclasses
import os
import time
from collections.abc import Iterator
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.checkpoint import (
  errors,
  fingerprint,
  folders,
  lock,
  meta,
  seal,
  seal_key,
)
from zaya_jax.checkpoint.actions import compare, listing
from zaya_jax.checkpoint.reading import (
  finder,
  high_water,
  ownership,
  resuming,
)
from zaya_jax.checkpoint.writing import retention

Lines = Iterator[dict[str, Any]]


def verify(config: config_lib.Config, source: str) -> Lines:
  """Reads every file and every array: the seal, then the fingerprints."""
  del config
  for directory in folders.checkpoints(source):
    started = time.monotonic()
    found: dict[str, Any] = {'checkpoint': directory}
    try:
      body = folders.check(directory)
      saved = body.get('fingerprint', {})
      fingerprint.check(directory, saved, compare.fingerprints(directory))
      sizes = [size for size, _ in body['files'].values()]
      found |= {'valid': True, 'files': len(sizes), 'bytes': sum(sizes)}
    except errors.CheckpointError as error:
      reason = getattr(error, 'reason', 'arrays')
      found |= {'valid': False, 'reason': reason, 'what': str(error)}
    yield {**found, 'seconds': round(time.monotonic() - started, 3)}


def seal_old(config: config_lib.Config, source: str) -> Lines:
  """Seals what has no seal, once all of its arrays could be read.

  What another key of the file has signed is signed with the first one.
  """
  del config
  for directory in folders.checkpoints(source):
    if os.path.lexists(os.path.join(directory, seal.NAME)):
      newest = seal_key.newest()
      if newest is not None and seal.key_id(directory) not in (None, newest):
        with lock.RunLock(folders.run_of(directory), '--source'):
          body = folders.check(directory)
          files = body.pop('files')
          seal.write(directory, body, known=files)
        yield {'checkpoint': directory, 'sealed': True, 'files': len(files)}
      continue
    with lock.RunLock(folders.run_of(directory), '--source'):
      about, _ = listing.described(directory)
      prints = compare.fingerprints(directory)
      facts = folders.facts(folders.step_of(directory), about, prints)
      body = seal.write(directory, facts)
    yield {'checkpoint': directory, 'sealed': True, 'files': len(body['files'])}


def prune(config: config_lib.Config, source: str) -> Lines:
  """Removes what a run with these settings would; by default with its own."""
  settings, plain = config.checkpoint, config_lib.CheckpointConfig()
  if (settings.keep, settings.keep_every) == (plain.keep, plain.keep_every):
    own = meta.read(finder.resolve(source)).get('config', {})
    own = own.get('checkpoint', {})
    own = {k: own[k] for k in ('keep', 'keep_every') if k in own}
    settings = dataclasses.replace(settings, **own)
  with lock.RunLock(source, '--source'):
    for step, why in retention.prune(folders.root(source), settings).items():
      more = {'reason': why} if why else {}
      yield {'step': step, 'removed': not why, **more}


def accept(config: config_lib.Config, source: str) -> Lines:
  """Lets a run go on from what is there: newer checkpoints may be gone."""
  owning = ownership.borrowed(config.aegis.lease, source)
  with lock.RunLock(source, '--source'), owning:
    step = resuming.newest(source)
    root = folders.root(source)
    there = step is not None
    body = seal.verified(os.path.join(root, str(step))) if there else None
    high_water.set_to(source, body)
  yield {'step': step, 'accepted': True}
