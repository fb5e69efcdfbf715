# SPDX-License-Identifier: Apache-2.0
"""What the ledger says of the data of a run."""

import os
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.config import segments
from zaya_jax.data import corpus as corpus_lib
from zaya_jax.data.ledger import book
from zaya_jax.runtime import processes, run_files


def of(config: config_lib.Config, corpus: corpus_lib.Corpus) -> book.Terms:
  """What is the same for all rows of this part of a run."""
  order = getattr(corpus.loader, 'order', None)
  counts = order.counts if order else lambda start, stop: ()
  return book.Terms(phase=segments.current(config).phase, counts=counts)


def reads(
  config: config_lib.Config, corpus: corpus_lib.Corpus
) -> dict[str, Any]:
  """Whose a ledger is, and of which data: what a line that opens it says."""
  folders = map(os.path.abspath, corpus.directories)
  return {
    'run': processes.first_says(lambda: run_files.run_id(config.run_dir)),
    'seed': config.seed,
    'sources': [
      {'directory': folder, 'manifest': data.sha256}
      for folder, data in zip(folders, corpus.loader.manifests, strict=True)
    ],
  }
