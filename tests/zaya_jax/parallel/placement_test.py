# SPDX-License-Identifier: Apache-2.0
"""The rules of who holds what."""

import subprocess
import sys

import pytest
from jax.sharding import PartitionSpec as P

from zaya_jax.parallel import partition, placement

EIGHT = {'replica': 4, 'fsdp': 2, 'expert': 1, 'context': 1}
EXPERT = {'replica': 4, 'fsdp': 1, 'expert': 2, 'context': 1}
ALL = ('fsdp', 'replica')

RULES = [
  # Name, shape, sizes, where it lives, where its state lives.
  ('embed', (40, 16), EIGHT, P('fsdp', None), P(ALL, None)),
  ('embed', (41, 16), EIGHT, P(None, 'fsdp'), P(None, ALL)),
  ('embed', (42, 15), EIGHT, P('fsdp', None), P('fsdp', None)),
  ('final_norm', (16,), EIGHT, P(None), P(ALL)),
  ('final_norm', (15,), EIGHT, P(None), P(None)),
  ('final_norm', (18,), EIGHT, P(None), P('fsdp')),
  # Layers are never divided.
  ('layers/moe_norm', (8, 16), EIGHT, P(None, None), P(None, ALL)),
  ('layers/moe_norm', (8, 3), EIGHT, P(None, None), P(None, None)),
  (
    'layers/attn/q',
    (8, 16, 24),
    EIGHT,
    P(None, 'fsdp', None),
    P(None, ALL, None),
  ),
  (
    'layers/experts/down',
    (8, 4, 16, 24),
    EXPERT,
    P(None, 'expert', None, None),
    P(None, 'expert', 'replica', None),
  ),
  (
    'layers/attn/q',
    (8, 16, 24),
    EXPERT,
    P(None, None, None),
    P(None, ('replica', 'expert'), None),
  ),
  (
    'layers/attn/conv_grouped',
    (8, 2, 16, 3, 3),
    EIGHT,
    P(None, None, None, None, None),
    P(None, None, ALL, None, None),
  ),
]


@pytest.mark.parametrize('name, shape, sizes, param, part', RULES)
def test_rules(name, shape, sizes, param, part):
  assert partition.param_spec(name, shape, sizes) == param
  assert partition.part_spec(name, shape, sizes) == part


def test_one_device_divides_nothing():
  sizes = dict.fromkeys(EIGHT, 1)
  for name, shape, *_ in RULES:
    whole = P(*[None] * len(shape))
    assert partition.param_spec(name, shape, sizes) == whole
    assert partition.part_spec(name, shape, sizes) == whole


@pytest.mark.parametrize(
  'tokens, n, rows', [(32, 2, 32), (32, 4, 16), (32, 8, 8), (30, 8, 30)]
)
def test_a_message_holds_twice_an_even_share(tokens, n, rows):
  assert placement.exchange_rows(tokens, n) == rows


def test_axes_that_dimensions_name():
  assert placement.axes_of([None, 'expert', ('fsdp', 'replica')]) == {
    'expert', 'fsdp', 'replica',
  }  # fmt: skip
  assert placement.axes_of(P(None)) == set()


def test_rules_need_no_jax():
  script = 'import sys; import zaya_jax.parallel.placement; print(*sys.modules)'
  done = subprocess.run(
    [sys.executable, '-c', script], capture_output=True, text=True, check=True
  )
  assert 'jax' not in done.stdout.split()
