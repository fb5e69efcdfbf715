# SPDX-License-Identifier: Apache-2.0
"""The settings of the released model, with changes."""

import pathlib

from zaya_jax import config, flags

FLAGFILE = pathlib.Path(__file__).parents[3] / 'configs' / 'zaya1_8b.flags'


def parse(*words: str) -> config.Config:
  """The preset, then `words`."""
  return flags.parse([f'--flagfile={FLAGFILE}', *words])
