# SPDX-License-Identifier: Apache-2.0
"""What came of each stage, of the files that its commands have written."""

import dataclasses
import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from zaya_jax.bench.machine import file, tables
from zaya_jax.preflight.contact import child, kernel_rows, losses

Outcome = Literal['right', 'wrong', 'failed', 'late', 'not checked']
_NAMED = 4  # Faults that a sentence names.
_FASTER = 0.95  # Of the time of the engine that is chosen: worth a word.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
  """What a stage has shown.

  Attributes:
    outcome: 'wrong': the machine or a kernel is; 'failed': a command did, for
      another reason; 'late': its time was over, and the same command goes on.
    said: what was found, short.
    advice: what to do, a line each.
    unfinished: commands that ended well before they had done all.
  """

  outcome: Outcome
  said: str
  advice: tuple[str, ...] = ()
  unfinished: tuple[str, ...] = ()


def preflight(root: pathlib.Path, ended: Sequence[child.Ended]) -> Verdict:
  """Whether the node is fit."""
  path = root / 'preflight.json'
  if not path.exists() or ended[0].code not in (0, 3):
    return _unfinished(ended)
  found = json.loads(path.read_text())
  faults = [c for c in found['checks'] if c['outcome'] == 'fault']
  if found['fit']:
    return Verdict(outcome='right', said=found['verdict'])
  advice = [f'{c["name"]}: {c["found"]}: {c["advice"]}' for c in faults]
  return Verdict(outcome='wrong', said=found['verdict'], advice=(*advice,))


def device(root: pathlib.Path, ended: Sequence[child.Ended]) -> Verdict:
  """Whether jax sees the GPUs, and our library is there where it is needed."""
  if ended[0].code:
    return Verdict(
      outcome='wrong',
      said=f'jax {ended[0].words}: {ended[0].last}',
      advice=('See docs/install.md and the log of the driver (dmesg).',),
    )
  if ended[0].code is None:
    return Verdict(
      outcome='wrong',
      said=f'looking for devices {ended[0].words}',
      advice=('A driver hangs: see dmesg, reboot, and repeat the command.',),
    )
  found = read_device(root)
  said = f'{found["devices"]} x {found["chip"]} ({found["platform"]})'
  if found['has_gpu'] and found['platform'] == 'cpu':
    return Verdict(
      outcome='wrong',
      said=f'{said}, and the machine has GPUs',
      advice=(
        'Install the plugin of this version of jax (docs/install.md): '
        'pip install "jax[rocm7-local]", or "jax[cuda13]" for NVIDIA; without '
        'GPUs: JAX_PLATFORMS=cpu in a container that does not see them.',
      ),
    )
  if found['platform'] == 'rocm' and found['library']:
    return Verdict(
      outcome='wrong',
      said=f'{said}, without our HIP kernels: {found["library"]}',
      advice=(
        'Needs hipcc of ROCm 7: make -C ops/native rocm PYTHON=$(which python)'
        '; or name a library that is built: ZAYA_OPS_LIBRARY=PATH.',
      ),
    )
  if found['library'] and found['platform'] == 'cuda':
    said += '; HIP kernels, which are for AMD, are not built and left out'
  return Verdict(outcome='right', said=said)


def read_device(root: pathlib.Path) -> dict[str, Any]:
  """What `device.look` found."""
  return json.loads((root / 'logs/device.out').read_text())


def kernels(root: pathlib.Path, ended: Sequence[child.Ended]) -> Verdict:
  """Whether an engine that would be chosen here is wrong, fails or crashes."""
  platform = read_device(root)['platform']
  rows, crashes = kernel_rows.read(root, ended, platform)
  bad = [row for row in rows if row['outcome'] in ('wrong', 'failed')]
  faults = [row for row in bad if kernel_rows.is_fault(row)]
  counts = {k: sum(r['outcome'] == k for r in rows) for k in ('right', 'wrong')}
  said = f'{counts["right"]} comparisons are right'
  said += f', {counts["wrong"]} wrong' if counts['wrong'] else ''
  if faults:
    which = {(row['op'], row['engine']): row for row in faults}
    named = [kernel_rows.sentence(row) for row in which.values()]
    advice = [kernel_rows.advice(key, rows) for key in which]
    return Verdict(
      outcome='wrong', said=f'{said}; {_few(named)}', advice=(*advice,)
    )
  if crashes:
    return Verdict(outcome='failed', said=f'{said}; {_few(crashes)}')
  if late := [one.name for one in ended if one.code is None]:
    return Verdict(outcome='late', said=f'{said}; {", ".join(late)}: no time')
  if bad:
    others = _few([kernel_rows.sentence(row) for row in bad])
    said += f'; not taken here by itself, or not in training: {others}'
  if short := [row['op'] for row in rows if row['outcome'] == 'no time']:
    return Verdict(
      outcome='late',
      said=f'{said}; the time did not suffice for all of {", ".join(short)}',
      unfinished=tuple(f'check_{op}' for op in short),
    )
  return Verdict(outcome='right', said=said)


def engines(root: pathlib.Path, ended: Sequence[child.Ended]) -> Verdict:
  """Which engines are faster than the one that is chosen."""
  rows = list(read_engines(root))
  timed = [row for row in rows if 'ms' in row]
  said = f'{len(timed)} times of {len({r["op"] for r in timed})} operations'
  if any(one.code != 0 for one in ended):
    verdict = _unfinished(ended)
    return dataclasses.replace(verdict, said=f'{said}; {verdict.said}')
  return Verdict(outcome='right', said=said)


def read_engines(root: pathlib.Path) -> Iterable[dict[str, Any]]:
  """The rows of all operations that were timed."""
  for path in sorted(root.glob('time_*.json')):
    yield from json.loads(path.read_text())['rows']


def machine(root: pathlib.Path, ended: Sequence[child.Ended]) -> Verdict:
  """What was measured; a part without time is gone on with."""
  path = root / 'machine.json'
  if ended[0].code or not path.exists():
    return _unfinished(ended)
  found = file.read(str(path))
  said = []
  for noun, section in found.sections.items():
    if section.points:
      best = tables.best(noun, section)
      said.append(f'{noun} {best / section.scale:.4g} {section.unit}')
  words = f'best rates: {", ".join(said)}'
  if missing := sum(len(part.missing) for part in found.sections.values()):
    words += f'; the time did not suffice for {missing} curves'
  if ended[0].code is None:
    return Verdict(outcome='late', said=f'{words}; {ended[0].words}')
  return Verdict(outcome='right', said=words)


def plan(root: pathlib.Path, ended: Sequence[child.Ended]) -> Verdict:
  """Time and memory of a step of the model on this machine."""
  path = root / 'plan.json'
  if ended[0].code != 0 or not path.exists():
    return _unfinished(ended)
  found = json.loads(path.read_text())
  memory, time = found['memory'], found['time']
  said = (
    f'a step of {found["tokens"]["step"]:,} tokens takes {time["step"]:.3g} s '
    f'and {memory["total"] / 1e9:.3g} of {memory["capacity"] / 1e9:.3g} GB'
  )
  if memory['total'] > memory['capacity']:
    said += ': it does not fit'
  return Verdict(outcome='right', said=said)


def training(root: pathlib.Path, ended: Sequence[child.Ended]) -> Verdict:
  """Whether the loss is that of the same training on a CPU."""
  if not ended:
    return Verdict(
      outcome='not checked',
      said='configs/quickstart.flags is not there: start in a clone',
    )
  if len(ended) < 2 or any(one.code != 0 for one in ended):
    return _unfinished(ended)
  found = losses.compare(
    losses.read(root / 'training/device'), losses.read(root / 'training/cpu')
  )
  if not found.wrong:
    return Verdict(outcome='right', said=found.said)
  return Verdict(
    outcome='wrong',
    said=found.said,
    advice=(
      'An operation gives other values in a whole step: repeat with '
      '--ops.attention=xla and so on, one at a time, to find it.',
    ),
  )


def _unfinished(ended: Sequence[child.Ended]) -> Verdict:
  """Of commands that have failed, or whose time was over."""
  bad = [one for one in ended if one.code not in (0, None)]
  late = [one for one in ended if one.code is None]
  words = [f'{one.name} {one.words}: {one.last}' for one in (*bad, *late)]
  advice = (f'See logs/{bad[0].name}.err.',) if bad else ()
  return Verdict(
    outcome='failed' if bad else 'late',
    said=_few(words) or 'a command has written nothing',
    advice=advice,
  )


def _few(words: list[str]) -> str:
  more = f' and {len(words) - _NAMED} more' if len(words) > _NAMED else ''
  return '; '.join(words[:_NAMED]) + more
