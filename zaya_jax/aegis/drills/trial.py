# SPDX-License-Identifier: Apache-2.0
"""One supervised run of a tiny model, and what its files say afterwards."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from importlib import metadata
from typing import Any

from zaya_jax.aegis.drills import table
from zaya_jax.runtime import faults, fence

_LIMIT_S = 600.0  # For a run; far more than any takes.
_FAILURES = (
  'exit',
  'hang',
  'agent_lost',
  'drained',
  'gpu_memory_uncorrectable',
  'not_finite',
)
STEPS = 60
# A model that learns in seconds.
TINY = """
--model.num_layers=1
--model.d_model=16
--model.num_heads=2
--model.num_kv_heads=1
--model.head_dim=8
--model.num_experts=2
--model.d_expert=16
--model.d_router=8
--data.seq_len=32
--data.record_tokens=1024
""".split()
FLAGS = [
  *TINY,
  *f"""
--mode=supervise
--num_steps={STEPS}
--data.batch_size=8
--optim.schedule=constant
--optim.warmup_steps=2
--checkpoint.every=10
--log.every=1
--log.sample_every=0
--nolog.tensorboard
--eval.every=0
--eval.batches=1
--generate.max_tokens=1
--aegis.nodes=a,b
""".split(),
]


@dataclasses.dataclass(frozen=True)
class Final:
  """The result of a run."""

  hashes: tuple[str, str]  # Of the parameters, of the whole state.
  data_index: int
  losses: dict[int, float]


class Trial:
  """One run.

  Args:
    root: of all drills, which share their text and compiled programs.
    name: of its folder.
    drill: what is to happen.
  """

  def __init__(self, root: pathlib.Path, name: str, drill: 'table.Drill'):
    self._root, self.drill, self.run_dir = root, drill, root / name
    self._log = root / f'{name}.log'
    self.supervisor: subprocess.Popen | None = None

  def start(self, *, faults: bool = True) -> None:
    """Starts the supervisor."""
    self.supervisor = self.command(
      self.drill.faults if faults else '', self._log
    )

  def command(self, wanted: str, log: pathlib.Path) -> subprocess.Popen:
    """Starts a supervisor of this run directory, with the faults `wanted`."""
    text = self._root / 'text.txt'
    if not text.exists():
      lines = (f'{n} times {n} is {n * n}.\n' for n in range(4000))
      text.write_text(''.join(lines))
    flags = [*FLAGS, f'--data.input={text}', f'--run_dir={self.run_dir}']
    flags += [flag.format(run_dir=self.run_dir) for flag in self.drill.flags]
    environment = {
      'JAX_PLATFORMS': 'cpu',
      'XLA_FLAGS': ' '.join(fast_compile()),
      # On CPUs JAX keeps programs of process 0 alone; the others compile.
      'JAX_COMPILATION_CACHE_DIR': str(self._root / 'compiled'),
      'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
      'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
      faults.VARIABLE: wanted,
    }
    with log.open('a') as file:
      return subprocess.Popen(
        [sys.executable, '-m', 'zaya_jax.main', *flags],
        env={**os.environ, **environment},
        stdout=file,
        stderr=file,
        stdin=subprocess.DEVNULL,
      )

  def await_end(self) -> int:
    """Waits for the supervisor, but not for ever; returns its exit code."""
    try:
      return self.supervisor.wait(_LIMIT_S)
    except subprocess.TimeoutExpired:
      self.supervisor.kill()
      return self.supervisor.wait()

  def close(self) -> None:
    """Ends what is left of it."""
    if self.supervisor and self.supervisor.poll() is None:
      self.supervisor.kill()
      self.supervisor.wait()

  def await_fault(self) -> dict[str, Any]:
    """Waits until a rank has its first fault."""
    path = self.run_dir / 'aegis' / 'faults.jsonl'
    until = time.monotonic() + _LIMIT_S
    while not (rows := _rows(path)) and time.monotonic() < until:
      time.sleep(0.02)
    return rows[0]

  def incidents(self, *kinds: str) -> list[dict[str, Any]]:
    """Lines of incidents.jsonl."""
    rows = _rows(self.run_dir / 'incidents.jsonl')
    return [row for row in rows if row['kind'] in kinds]

  def generations(self) -> int:
    """How many there were."""
    return fence.newest(str(self.run_dir))

  def said(self, words: str) -> bool:
    """Whether the supervisor or a rank printed it."""
    return words in self._log.read_text()

  def times(self) -> dict[str, Any]:
    """Seconds until faults were seen and training went on; the worst ones."""
    seen = self.incidents(*_FAILURES)
    again = [row['time'] for row in self.incidents('running')]
    detect, recover = [], []
    for fault in _rows(self.run_dir / 'aegis' / 'faults.jsonl'):
      after = [row['time'] for row in seen if row['time'] >= fault['time']]
      if after:
        detect.append(after[0] - fault['time'])
        trains = [t - fault['time'] for t in again if t > after[0]]
        recover += trains[:1]
    sealed, redone = 0, 0
    for row in self.incidents('sealed', *_FAILURES):
      if row['kind'] == 'sealed':
        sealed = row['step']
      elif row['done']['kind'] != 'stop':
        redone += max(0, (row['step'] or 0) - sealed)
    return {
      'detect_s': round(max(detect), 3) if detect else None,
      'recover_s': round(max(recover), 3) if recover else None,
      'steps_redone': redone,
    }

  def final(self) -> Final:
    """Reads the last checkpoint, in a process that may import jax."""
    source = self.run_dir / 'checkpoints' / str(STEPS)
    done = subprocess.run(
      [sys.executable, '-m', 'zaya_jax.main', '--mode=checkpoints']
      + [f'--source={source}'],
      env={**os.environ, 'JAX_PLATFORMS': 'cpu'},
      stdout=subprocess.PIPE,
      check=False,
    )
    if done.returncode:
      return Final(('', ''), -1, {})
    about = json.loads(done.stdout.splitlines()[-1])
    rows = _rows(self.run_dir / 'metrics.jsonl')
    losses = {r['step']: r['train/loss'] for r in rows if 'train/loss' in r}
    hashes = about.get('params_hash', ''), about.get('state_hash', '')
    return Final(hashes, about.get('data_index', -1), losses)

  def processes(self) -> list[int]:
    """Ends processes that still work in the run directory; returns them."""
    found, until = [0], time.monotonic() + 5
    while found and time.monotonic() < until:
      found = [
        int(path.parent.name)
        for path in pathlib.Path('/proc').glob('[0-9]*/cmdline')
        if f'{self.run_dir}/aegis' in _read(path)
      ]
    for pid in found:
      os.kill(pid, signal.SIGKILL)
    return found


def fast_compile() -> list[str]:
  """XLA's flags for programs of CPUs that compile longer than they compute."""
  flags = ['--xla_backend_optimization_level=0']
  version = metadata.version('jaxlib').split('.')
  # Later ones do not know it, and a flag that XLA does not know ends it.
  if tuple(map(int, version[:2])) < (0, 11):
    flags.append('--xla_cpu_use_fusion_emitters=false')
  return flags


def _rows(path: pathlib.Path) -> list[dict[str, Any]]:
  """Whole lines of a file of JSON."""
  if not path.exists():
    return []
  lines = path.read_text(encoding='utf-8').split('\n')[:-1]
  return [json.loads(line) for line in lines if line]


def _read(path: pathlib.Path) -> str:
  try:
    return path.read_text(errors='replace')
  except OSError:  # It has ended meanwhile.
    return ''
