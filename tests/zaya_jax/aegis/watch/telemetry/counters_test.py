# SPDX-License-Identifier: Apache-2.0
"""Names and numbers of counters."""

import pytest

from zaya_jax.aegis.watch.telemetry import counters


def test_name_is_as_prometheus_writes_it():
  assert counters.name('a', b=3, c='x"y') == r'a{b="3",c="x\"y"}'


@pytest.mark.parametrize(
  'value, expected',
  [
    (3, 3.0),
    (2.5, 2.5),
    ('17', 17.0),
    ('0x10', 16.0),
    ({'value': 4, 'unit': 'MB'}, 4.0),
    ('N/A', None),
    (None, None),
    (True, None),
    (-1, None),
    (2**64, None),  # What a tool writes that has none.
    (float('nan'), None),
    ([1], None),
    ({'value': {'value': 1}}, None),
  ],
)
def test_only_counts_are_numbers(value, expected):
  assert counters.number(value) == expected


def test_counts_of_one_meaning_are_added_up():
  found = {}
  counters.take(found, {'x': 1, 'y': 2, 'z': 9}, {'x': 'a', 'y': 'a'}, d='e')
  assert found == {'a{d="e"}': 3.0}


@pytest.mark.parametrize('text', ['', '{', '7', '{"a": 1}', '[' * 100_000])
def test_what_is_no_list_is_refused(text):
  with pytest.raises(ValueError, match='^it '):
    counters.entries(text)


def test_entries_that_are_no_objects_are_left_out():
  assert counters.entries('{"n": 1, "gpu_data": [{"gpu": 0}, 3]}') == [
    {'gpu': 0}
  ]
