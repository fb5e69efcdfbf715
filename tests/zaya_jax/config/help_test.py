# SPDX-License-Identifier: Apache-2.0
"""The help of every flag, and that it fits a terminal."""

from zaya_jax.config import help as help_lib


def test_help_tells_defaults_choices_and_bounds():
  text = ' '.join(help_lib.text().split())
  assert '--num_steps=1000 Optimizer steps of the run. [at least 0]' in text
  assert '[off | zero | identity]' in text
  assert '--optim.nesterov=true' in text
  assert '[0.0 to 1.0]' in text


def test_help_fits_a_terminal_of_80_columns():
  assert max(map(len, help_lib.text().splitlines())) <= 80
