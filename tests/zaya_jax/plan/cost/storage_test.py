# SPDX-License-Identifier: Apache-2.0
"""What a step reads from storage."""

import pytest

from tests.support import curves, released
from zaya_jax import config as config_lib
from zaya_jax.bench.machine import known
from zaya_jax.plan.cost import storage


def reads(tokens, vocab_size=262_272, **data):
  config = config_lib.Config(
    model=config_lib.ModelConfig(vocab_size=vocab_size),
    data=config_lib.DataConfig(**data),
  )
  return storage.reads(config, tokens)


# 2^20 tokens a step; compressed records of 32,768 and 4,096 tokens have 11.84
# and 1.48 pages.
@pytest.mark.parametrize(
  'seq_len, record_tokens, records, pages',
  [
    (4_096, 32_768, 256, 256 * 12),
    (32_768, 32_768, 32, 32 * 12),
    (131_072, 32_768, 32, 32 * 12),
    (4_096, 4_096, 256, 256 * 2),
    (512, 4_096, 2_048, 2_048 * 2),
  ],
)
def test_reads_by_hand(seq_len, record_tokens, records, pages):
  found = reads(2**20, seq_len=seq_len, record_tokens=record_tokens)
  assert found['reads_per_step'] == records
  assert found['pages_per_step'] == pages
  assert found['bytes_per_step'] == records * record_tokens * 4 * storage.PACKED


def test_small_vocabulary_takes_half():
  small, large = (reads(2**20, v)['bytes_per_step'] for v in (65_536, 65_537))
  assert 2 * small == large


def test_a_measured_disk_and_link_count():
  config = released.parse('--plan.devices=8')
  mi300x = known.read('mi300x')
  found = storage.reads(config, 2**20, mi300x)
  # As it was published: 70,000 reads of a page in a second.
  assert found['iops_limit'] == pytest.approx(storage.IOPS, rel=1e-3)
  assert storage.copy_s(mi300x, 5.5e9) == pytest.approx(0.1)
  fast = curves.machine(
    storage=[curves.point(4096, 1e-6, 'scattered read', 16)]
  )
  assert storage.reads(config, 2**20, fast)['iops_limit'] == 1_000_000
  assert storage.copy_s(fast, 1e9) is None
