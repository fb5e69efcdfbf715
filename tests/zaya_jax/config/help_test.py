# SPDX-License-Identifier: Apache-2.0
"""The help of every flag, and that it fits a terminal."""

import typing

from zaya_jax import config
from zaya_jax.config import flags
from zaya_jax.config import help as help_lib


def test_help_tells_defaults_choices_and_bounds():
  text = ' '.join(help_lib.text(['all']).split())
  assert '--num_steps=1000 Optimizer steps of the run. [at least 0]' in text
  assert '[off | zero | identity]' in text
  assert '--optim.nesterov=true' in text
  assert '[0.0 to 1.0]' in text


def test_help_fits_a_terminal_of_80_columns():
  for chosen in ([], ['all'], ['model', 'data']):
    assert max(map(len, help_lib.text(chosen).splitlines())) <= 80


def test_ten_flags_and_all_modes_are_told_and_exist():
  kinds = {
    setting.name: setting.kind
    for _, _, settings in flags.sections(config.Config)
    for setting in settings
  }
  assert len(help_lib.TEN) == 10
  assert {*help_lib.TEN} - {*kinds} == {'flagfile'}
  assert {*help_lib.MODES} == {*typing.get_args(kinds['mode'])}
