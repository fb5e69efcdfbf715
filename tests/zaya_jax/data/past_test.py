# SPDX-License-Identifier: Apache-2.0
"""What decided the rows before one."""

from fractions import Fraction

from pipelines import order
from zaya_jax.data import past

HALF = (Fraction(1, 2), Fraction(1, 2))


def test_shares_do_not_depend_on_how_weights_are_written():
  expected = (Fraction(3, 4), Fraction(1, 4), 0)
  assert past.shares((Fraction(3), Fraction(1), Fraction(0))) == expected
  assert past.shares(tuple(map(Fraction, ('0.75', '0.25', '0')))) == expected


def test_stretches_are_cut_at_the_row():
  one = order.Stretch(10, 16, (Fraction(2), Fraction(2)))
  two = order.Stretch(None, 32, (Fraction(1), Fraction(0)))
  cut = order.Stretch(10, 16, HALF)
  assert past.before([one, two], 0) == []
  assert past.before([one, two], 9) == [order.Stretch(9, 16, HALF)]
  assert past.before([one, two], 10) == [cut]
  assert past.before([one, two], 13) == [cut, order.Stretch(3, 32, (1, 0))]
