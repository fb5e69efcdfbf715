# SPDX-License-Identifier: Apache-2.0

import numpy as np

from pipelines.sources import cache


def test_what_was_used_last_is_kept_up_to_its_bytes():
  kept, reads = cache.Cache(100), []

  def get(key, size=40):
    def read():
      reads.append(key)
      return np.full(size, key, np.uint8)

    assert kept.get(key, read)[0] == key

  get(1), get(2), get(1), get(3)  # 2 goes.
  assert reads == [1, 2, 3]
  get(1), get(3), get(2)
  assert reads == [1, 2, 3, 2]
  get(9, size=101)
  get(9, size=101)  # Too large to keep.
  assert reads == [1, 2, 3, 2, 9, 9]
  get(3), get(2)
  assert len(reads) == 6
