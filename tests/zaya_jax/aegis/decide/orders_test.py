# SPDX-License-Identifier: Apache-2.0
"""What a reason may hold that a shell reads."""

import re

import pytest

from zaya_jax.aegis.decide import orders


@pytest.mark.parametrize(
  'reason',
  ['$(reboot)', '`x`', 'a; b', "'", 'x State=RESUME', '--force', '*', '~', '!1']
  + ['a\nb', '\u202e', '{node}', 'a && b', 'a|b', '>x', '\\', 'a\tb', '#'],
)
def test_no_character_means_anything_to_a_shell(reason):
  (word,) = orders.words('{reason}', node='b', reason=reason)
  assert re.fullmatch(r'[\w.,:/+][\w.,:/+-]*|', word, re.ASCII), word
  assert (
    orders.line('x Reason={reason}', node='b', reason=reason).count(' ') == 1
  )


def test_reason_is_cut():
  assert len(orders.words('{reason}', node='', reason='x' * 999)[0]) == 200


def test_line_is_taken_apart_again():
  assert orders.line("a 'b {node}'", node='n 7', reason='') == "a 'b n 7'"
