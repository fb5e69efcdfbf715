# SPDX-License-Identifier: Apache-2.0
"""What a mode needs, before jax is imported: its paths, a mesh that divides."""

import dataclasses
import glob
import importlib.util
import os
import sys
from collections.abc import Iterator
from typing import Any

from zaya_jax.config import fields, machine, run
from zaya_jax.config.checks import adapted, division
from zaya_jax.config.recipe import segments

_MODEL = 'a run directory, a checkpoint or a Hugging Face folder'
_TEXT = "a folder, a file, a glob or 'stdlib'"
# What a flag must name, and whether that is a folder (None: either).
_KINDS = {
  'run_dir': (_MODEL, True),
  'source': (_MODEL, True),
  'source.json': ('a run, or a .json file of --mode=bench', False),
  'restore': (_MODEL, True),
  'checkpoint.other': ('a run directory or a checkpoint', True),
  'checkpoint.seal_key_file': ('a file with a secret', False),
  'data.dir': ('a folder of prepared shards', True),
  'data.input': (_TEXT, None),
  'data.tokenizer': ("'bytes', a tokenizer.json or its folder", None),
  'eval.task_dir': ('the folder with your task files', True),
  'eval.text': ('a file with text', False),
  'machine': ('a .json file of --mode=bench, or a machine by name', False),
  'preflight.machine': ('a .json file of --mode=bench', False),
  'generate.prompts': ('a file with prompts', False),
  'serve.api_key_file': ('a file with a key per line', False),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Mode:
  """What a mode needs.

  Attributes:
    needs: groups of flags, of each of which one must be set.
    reads: flags whose paths must be there, where they are set; of a group as in
      `needs`, the first that is set.
    ends: of the file that --output names; (): it names a folder.
  """

  needs: tuple[tuple[str, ...], ...] = ()
  reads: tuple[str | tuple[str, ...], ...] = ()
  ends: tuple[str, ...] = ()


_READ, _WRITE, _RUN = ('source', 'run_dir'), ('output',), ('run_dir',)
_TRAIN = _Mode(needs=(_RUN,), reads=('data.tokenizer', 'machine'))
_MODES = {
  'train': _TRAIN,
  'supervise': _TRAIN,
  'prepare': _Mode(
    needs=(('data.input',), ('output', 'data.dir', 'run_dir')),
    reads=('data.input', 'data.tokenizer'),
  ),
  'data': _Mode(needs=(('source', 'data.dir', 'run_dir'),)),
  'eval': _Mode(needs=(_READ,), reads=(_READ, 'eval.text', 'eval.task_dir')),
  'generate': _Mode(needs=(_READ,), reads=(_READ, 'generate.prompts')),
  'chat': _Mode(needs=(_READ,), reads=(_READ,)),
  'serve': _Mode(needs=(_READ,), reads=(_READ, 'serve.api_key_file')),
  'checkpoints': _Mode(needs=(_READ,), reads=(_READ, 'checkpoint.other')),
  'import': _Mode(needs=(('source',), _WRITE), reads=('source',)),
  'export': _Mode(needs=(_READ, _WRITE), reads=(_READ,)),
  'conform': _Mode(reads=('source',)),
  'plan': _Mode(reads=('machine',), ends=('.json', '.svg')),
  'bench': _Mode(ends=('.json',)),
  'preflight': _Mode(reads=('preflight.machine',), ends=('.json',)),
  'contact': _Mode(needs=(_RUN,)),
  'report': _Mode(needs=(_READ,), reads=(_READ,), ends=('.html',)),
  'ledger': _Mode(needs=(_READ,), reads=(_READ,), ends=('.toml',)),
  'rehearse': _Mode(needs=(('recipe',),)),
}


def check(config: run.Config) -> None:
  """Checks the paths of a mode and, for training, the mesh.

  Raises:
    UsageError: if a path is missing, is not there, or cannot be written, or the
      mesh fits no number of devices.
  """
  if config.mode == 'supervise' and (config.drill or config.aegis.replay):
    return
  mode = _MODES[config.mode]
  if not all(
    any(fields.value(config, flag) for flag in group) for group in mode.needs
  ):
    needs = ' and '.join(_choice(group) for group in mode.needs)
    raise fields.UsageError(f'--mode={config.mode} needs {needs}.')
  for flag, path in _read_paths(config, mode):
    _check_there(flag, path)
  _check_output(config, mode)
  adapted.check_quant(config)
  if mode is not _TRAIN:
    return
  _check_trackers(config)
  adapted.check_lora(config)
  adapted.check_dpo(config)
  # Those of --restore are not known yet.
  experts = 0 if config.restore else config.model.num_experts
  course = segments.course(config)
  if not course:
    _check_data(config)
    division.check(config, _at_least(config), experts)
    return
  _check_sources(config, course.recipe)
  segments.in_each(
    config, lambda part: division.check(part, _at_least(part), experts)
  )


def _check_trackers(config: run.Config) -> None:
  """Whether what is to follow the run is installed, and serves once."""
  for name in ('wandb', 'mlflow'):
    # W&B writes a folder of its name, which is no package of it.
    found = importlib.util.find_spec(name)
    if fields.value(config, f'log.{name}') and not (found and found.origin):
      raise fields.UsageError(
        f'--log.{name} needs the package {name}, which is not installed; run '
        f'{sys.executable} -m pip install {name}, or leave the flag out.'
      )
  if config.mode == 'supervise' and config.log.metrics_port:
    raise fields.UsageError(
      f'--log.metrics_port={config.log.metrics_port} is of a training without '
      'a supervisor, which has --aegis.port; drop one of the two.'
    )


def _at_least(config: run.Config) -> dict[str, Any]:
  """The axes of the mesh, with the fewest devices that it can have."""
  return {**vars(config.mesh), 'replica': config.mesh.replica or 1}


def _check_sources(config: run.Config, recipe: Any) -> None:
  """Whether each source is there, or the text that it is made of."""
  for source in recipe.sources:
    folder, text = source.folder(config.run_dir), source.input
    known = _is_url(folder) or _is_url(text) or text == 'stdlib'
    if known or os.path.isdir(folder):
      continue
    if not text:
      raise fields.UsageError(
        f'--recipe={recipe.path}: sources.{source.name}: {folder} is no folder '
        'of prepared shards; --mode=prepare makes one.'
      )
    if not os.path.exists(text) and not glob.glob(text, recursive=True):
      raise fields.UsageError(
        f'--recipe={recipe.path}: sources.{source.name}.input: {text} does not '
        f'exist; name {_TEXT}.'
      )


def _read_paths(config: run.Config, mode: _Mode) -> Iterator[tuple[str, str]]:
  """Yields each path that the mode reads, with its flag."""
  yield 'checkpoint.seal_key_file', config.checkpoint.seal_key_file
  for group in mode.reads:
    group = (group,) if isinstance(group, str) else group
    flag = next((f for f in group if fields.value(config, f)), group[0])
    path = fields.value(config, flag)
    if config.mode == 'report' and flag == 'source' and _is_machine(path):
      yield 'source.json', path
    elif config.mode == 'report' and not os.path.exists(path):
      yield from ((flag, part) for part in path.split(','))
    elif (flag, path) != ('data.tokenizer', 'bytes'):
      yield flag, path
  # A run that goes on needs its own checkpoints only.
  goes_on = os.path.isdir(os.path.join(config.run_dir, 'checkpoints'))
  if mode is _TRAIN and not goes_on:
    yield 'restore', config.restore


def _check_data(config: run.Config) -> None:
  """Whether training finds its shards, or a text to make them of."""
  own = os.path.join(config.run_dir, 'data')
  first, *others = [_without_weight(d) for d in config.data.dir] or [own]
  for path in others:
    _check_there('data.dir', path)
  if _is_url(first) or os.path.isdir(first):
    return  # The text may be gone.
  if config.data.input:
    _check_there('data.input', config.data.input)
  elif config.data.dir:
    _check_there('data.dir', first)
  else:
    raise fields.UsageError(
      '--data.input= and --data.dir= are both empty; name a text to prepare '
      "('stdlib' is on every machine) or prepared shards."
    )


def _check_there(flag: str, path: str) -> None:
  """Refuses a path that is not there, or is not what its flag names."""
  what, is_folder = _KINDS[flag]
  flag = flag.removesuffix('.json')
  if not path or (flag, path) == ('data.input', 'stdlib'):
    return
  if flag.endswith('machine') and path in (*machine.MACHINES, 'none'):
    return
  if flag in ('data.input', 'data.dir') and _is_url(path):
    return  # Only its store knows.
  if not os.path.exists(path):
    if flag == 'data.input' and glob.glob(path, recursive=True):
      return
    raise fields.UsageError(f'--{flag}={path} does not exist; name {what}.')
  if is_folder not in (None, os.path.isdir(path)):
    noun = 'folder' if is_folder else 'file'
    raise fields.UsageError(f'--{flag}={path} is not a {noun}; name {what}.')


def _check_output(config: run.Config, mode: _Mode) -> None:
  """Refuses an output of another type, or one that lies in a file."""
  outputs = config.output.split(',') if mode.ends else [config.output]
  if mode.ends and not all(p.endswith(mode.ends) for p in outputs if p):
    raise fields.UsageError(
      f'--output={config.output} must end in {" or ".join(mode.ends)} for '
      f'--mode={config.mode}.'
    )
  for flag, path in [('run_dir', config.run_dir), ('output', config.output)]:
    folder = os.path.abspath(path)
    if flag == 'output':  # What is there already is told by the mode.
      folder = os.path.dirname(folder)
    while not os.path.lexists(folder):
      folder = os.path.dirname(folder)
    if flag == 'output' and config.mode == 'prepare' and _is_url(path):
      continue
    if _is_url(path):
      raise fields.UsageError(
        f'--{flag}={path} is no place of this machine; --mode=prepare alone '
        'writes to a URL.'
      )
    if path and not os.path.isdir(folder):
      raise fields.UsageError(
        f'--{flag}={path} cannot be written: {folder} is not a folder; choose '
        'another.'
      )


def _is_machine(path: str) -> bool:
  """Whether a report is asked for of what --mode=bench has written."""
  return path.endswith('.json') and not os.path.isdir(path)


def _is_url(path: str) -> bool:
  return '://' in path


def _choice(group: tuple[str, ...]) -> str:
  first, *others = [f'--{flag}=PATH' for flag in group]
  return f'{first} (or {" or ".join(others)})' if others else first


def _without_weight(text: str) -> str:
  """The folder of DIR or DIR@WEIGHT."""
  return text if os.path.exists(text) else text.rpartition('@')[0] or text
