# SPDX-License-Identifier: Apache-2.0
"""The settings of the released model, with changes."""

import pathlib

from zaya_jax import config

FLAGFILE = pathlib.Path(__file__).parents[2] / 'configs' / 'zaya1_8b.flags'


def parse(*words: str) -> config.Config:
  """The preset as a cluster of MI300X computes it, then `words`.

  A plan of it takes data sheets, for sums that can be made by hand.
  """
  before = f'--flagfile={FLAGFILE}', '--model.remat=block', '--machine=none'
  return config.Config.parse([*before, *words])
