# SPDX-License-Identifier: Apache-2.0
"""What --help prints: each flag with its default, meaning and bounds."""

import textwrap
import typing
from collections.abc import Sequence

from zaya_jax.config import fields, flags, run

_INTRO = """\
zaya_jax trains, continues, evaluates and samples ZAYA1 models.

usage: zaya MODE [--flagfile=FILE] [--name=value ...]

In a clone, python -m zaya_jax.main stands for zaya, and --mode=MODE is a flag
like any other. Of two settings of one flag the later one wins: flagfile first,
changes after. --name and --noname stand for --name=true and --name=false.
"""
_BEGIN = """\
to begin, in a clone of the repository:
  python -m zaya_jax.main train --flagfile=configs/quickstart.flags
  python -m zaya_jax.main generate --run_dir=runs/quickstart --prompt='class '
"""
_MORE = (
  '--help=all lists all {flags} flags, --help=SECTION those of a section, '
  '--help=model,data of several; --version names the versions. Sections: '
  '{sections}.'
)
# What each mode does, in the order of `run`.
MODES = {
  'train': 'trains, and goes on from the newest checkpoint of --run_dir',
  'prepare': 'makes shards of tokens from --data.input',
  'data': 'says what shards hold',
  'eval': 'scores a model on a text or on tasks',
  'generate': 'continues --prompt',
  'chat': 'talks in the terminal',
  'serve': "OpenAI's API and a page to talk to the model",
  'checkpoints': 'lists, verifies, compares or reshapes checkpoints',
  'import': 'makes a run of a Hugging Face folder',
  'export': 'makes a Hugging Face folder of a run',
  'conform': 'compares the outputs of another implementation with ours',
  'plan': 'says what a run needs on machines that you do not have',
  'bench': 'measures operations, or a machine',
  'preflight': 'says whether this node is fit to train',
  'contact': 'does all that the first hour on a new machine needs',
  'supervise': 'trains on several processes or nodes, and restarts them',
  'report': 'writes the page of a run, or of several',
  'ledger': 'proves what a run was trained on',
  'rehearse': 'plays a recipe in miniature, with kills',
}
# The flags of nearly every command, in short.
TEN = {
  'flagfile': 'File of flags to begin with, for example configs/small.flags.',
  'run_dir': 'Run directory: everything that a run writes.',
  'data.input': "Text to train on: folder, file, glob or 'stdlib'.",
  'num_steps': 'Optimizer steps of the run.',
  'data.batch_size': 'Rows of a step, of all devices together.',
  'data.seq_len': 'Tokens of a row.',
  'optim.lr': 'Peak learning rate.',
  'restore': 'Run, checkpoint or Hugging Face folder to start from.',
  'source': 'Model that eval, generate, export and others read.',
  'output': 'What prepare, import, export, plan and others write.',
}
_COLUMN = 36  # Where the meaning of a flag starts, of 80.


def text(chosen: Sequence[str] = ()) -> str:
  """The help of some sections; of none: how to begin, and ten flags.

  Args:
    chosen: titles of sections, or 'all'.

  Raises:
    UsageError: if there is no such section.
  """
  found = list(flags.sections(run.Config))
  titles = [title for title, *_ in found]
  if not chosen:
    return _first(found)
  for word in chosen:
    if word not in (*titles, 'all'):
      raise fields.UsageError(
        f'--help={word} is not a section; choose of all, {", ".join(titles)}.'
      )
  everything = 'all' in chosen
  lines = [_INTRO] if everything else []
  for title, summary, settings in found:
    if not everything and title not in chosen:
      continue
    lines.append(f'{title}: {summary}')
    for setting in settings:
      lines += _entry(setting)
    lines.append('')
  return '\n'.join(lines[:-1])


def _first(found: Sequence[tuple[str, str, list[flags.Setting]]]) -> str:
  """What somebody reads who knows nothing yet."""
  known = {s.name: s for _, _, settings in found for s in settings}
  lines = [_INTRO, 'modes:']
  lines += [f'  {mode:<12}{what}' for mode, what in MODES.items()]
  lines += ['', 'the ten flags you need:']
  for name, what in TEN.items():
    shown = _default(known[name]) if name in known else 'FILE'
    lines += _columns(f'  --{name}={shown}', what)
  more = _MORE.format(
    flags=len(known), sections=', '.join(title for title, *_ in found)
  )
  return '\n'.join([*lines, '', _BEGIN, *textwrap.wrap(more, 80)])


def _entry(setting: flags.Setting) -> list[str]:
  """The help of one flag."""
  what = f'{setting.field.metadata["help"]} {rule(setting)}'.rstrip()
  return _columns(f'  --{setting.name}={_default(setting)}', what)


def _default(setting: flags.Setting) -> str:
  """The default of a flag as one would type it."""
  default = setting.field.default
  if isinstance(default, bool):
    return str(default).lower()
  return '' if default == () else str(default)


def _columns(name: str, what: str) -> list[str]:
  """A flag and its meaning, beside each other."""
  wrapped = textwrap.wrap(what, 80 - _COLUMN)
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
