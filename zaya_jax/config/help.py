# SPDX-License-Identifier: Apache-2.0
"""What --help prints: each flag with its default, meaning and bounds."""

import textwrap
import typing
from collections.abc import Sequence

from zaya_jax.config import fields, flags, run

_INTRO = """\
zaya_jax trains, continues, evaluates and samples ZAYA1 models.

usage: python -m zaya_jax.main --flagfile=FILE [--name=value ...]

Of two settings of one flag the later one wins: flagfile first, changes after.
--name and --noname stand for --name=true and --name=false.
--help=model,data shows these sections alone, --version the version.
"""
_COLUMN = 36  # Where the meaning of a flag starts, of 80.


def text(chosen: Sequence[str] = ()) -> str:
  """The help of some sections; of none: of all, with how to begin.

  Raises:
    UsageError: if there is no such section.
  """
  found = list(flags.sections(run.Config))
  titles = [title for title, *_ in found]
  for word in chosen:
    if word not in titles:
      raise fields.UsageError(
        f'--help={word} is not a section; choose of {", ".join(titles)}.'
      )
  lines = [] if chosen else [_INTRO]
  for title, summary, settings in found:
    if chosen and title not in chosen:
      continue
    lines.append(f'{title}: {summary}')
    for setting in settings:
      lines += _entry(setting)
    lines.append('')
  return '\n'.join(lines[:-1])


def _entry(setting: flags.Setting) -> list[str]:
  """The help of one flag, in two columns."""
  default = setting.field.default
  if isinstance(default, bool):
    default = str(default).lower()
  name = f'  --{setting.name}={default if default != () else ""}'
  wrapped = textwrap.wrap(
    f'{setting.field.metadata["help"]} {rule(setting)}'.rstrip(), 80 - _COLUMN
  )
  if len(name) >= _COLUMN:
    return [name, *(' ' * _COLUMN + line for line in wrapped)]
  first, *rest = wrapped
  return [name.ljust(_COLUMN) + first, *(' ' * _COLUMN + x for x in rest)]


def rule(setting: flags.Setting) -> str:
  """The values that a flag admits, where not all of its type."""
  if typing.get_origin(setting.kind) is typing.Literal:
    return f'[{" | ".join(typing.get_args(setting.kind))}]'
  metadata = setting.field.metadata
  low, high = metadata['minimum'], metadata['maximum']
  if low is not None and high is not None:
    return f'[{low} to {high}]'
  return '' if low is None else f'[at least {low}]'
