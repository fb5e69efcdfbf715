# SPDX-License-Identifier: Apache-2.0

import numpy as np

from benchmarks import linked_shards
from pipelines import loader
from pipelines.shards import manifest


def test_shards_are_links_that_can_be_read(tmp_path):
  records = [np.full(64, 7), np.full(64, 8)]
  made = linked_shards.make(tmp_path / 'a', records, 3)
  assert manifest.verify(tmp_path / 'a') == made
  with loader.make_train_loader(
    [str(tmp_path / 'a')], seq_len=64, batch_size=6, seed=0
  ) as batches:
    assert sorted(next(batches)['tokens'][:, 0]) == [7, 7, 7, 8, 8, 8]
