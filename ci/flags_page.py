# SPDX-License-Identifier: Apache-2.0
"""Writes docs/flags.md, a table of every flag, from the dataclasses.

PYTHONPATH=. python ci/flags_page.py
"""

import pathlib

from zaya_jax import config as config_lib
from zaya_jax.config import flags
from zaya_jax.config import help as help_lib

PAGE = pathlib.Path(__file__).parents[1] / 'docs' / 'flags.md'
_INTRO = """\
# Flags

Written by `make docs` from the dataclasses in `zaya_jax/config/`; `python -m
zaya_jax.main --help=all` shows the same. Presets first, then changes: of two
settings of one flag the later one wins. `--name` and `--noname` stand for
`--name=true` and `--name=false`; commas separate the values of a list. From
Python, `--model.d_model=256` is
`zaya_jax.Config(model=zaya_jax.ModelConfig(d_model=256))`.
"""


def page() -> str:
  """The page, one table for each section."""
  lines = [_INTRO]
  for title, summary, settings in flags.sections(config_lib.Config):
    lines += [
      f'## {title}',
      '',
      summary,
      '',
      '| flag | default | meaning |',
      '| --- | --- | --- |',
    ]
    lines += [_row(setting) for setting in settings]
    lines.append('')
  return '\n'.join(lines)


def _row(setting: flags.Setting) -> str:
  default = setting.field.default
  if isinstance(default, bool):
    default = str(default).lower()
  default = ','.join(default) if isinstance(default, tuple) else default
  shown = f'`{default}`' if default != '' else ''
  meaning = f'{setting.field.metadata["help"]} {help_lib.rule(setting)}'
  meaning = meaning.strip().replace('|', '\\|').replace('<', '&lt;')
  return f'| `--{setting.name}` | {shown} | {meaning} |'


if __name__ == '__main__':
  PAGE.write_text(page(), encoding='utf-8')
