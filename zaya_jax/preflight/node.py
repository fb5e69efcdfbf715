# SPDX-License-Identifier: Apache-2.0
"""What can be asked about this node: programs, files, and a few facts.

Tests stand in for `Node`. Nothing here waits for long: a program that does not
end is killed, and not asked again.
"""

import concurrent.futures
import contextlib
import glob
import os
import pathlib
import re
import resource
import signal
import subprocess
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata

from zaya_jax.preflight import errors, short_runs, values

TOOL_S = 20.0  # Seconds of a program.
_ENVIRONMENT = pathlib.Path(__file__).parents[2] / 'deploy/mi300x.env'
_KFD = '/sys/class/kfd/kfd/topology/nodes'
# CRAT_IOLINK_TYPE_XGMI of the driver's kfd_crat.h.
_XGMI = re.compile(r'^type 11$', re.MULTILINE)
_PLUGINS = re.compile(r'jax[-_](?:cuda|rocm)\d+[-_]plugin')


class Node:
  """This node.

  Args:
    machine: path of a machine file; '': no short runs.
  """

  def __init__(self, machine: str = '') -> None:
    self.runs = short_runs.ShortRuns(machine)
    self._said: dict[tuple[str, ...], str | errors.UnseenError] = {}
    self._hung: set[str] = set()

  def tags(self) -> set[str]:
    """Which rules are for it: any, gpu, nvidia, rocm, rdma."""
    found = {'any'}
    if os.path.exists('/dev/nvidiactl'):
      found |= {'gpu', 'nvidia'}
    if os.path.exists('/dev/kfd'):
      found |= {'gpu', 'rocm'}
    if self.files('/sys/class/infiniband/*/ports/*/state'):
      found.add('rdma')
    return found

  def command(self, words: Sequence[str]) -> str:
    """What a program prints.

    Raises:
      SickError: if it does not end.
      UnseenError: if it is not there, or fails.
    """
    if words[0] in self._hung:
      raise errors.UnseenError(f'{words[0]} hung before')
    key = tuple(words)
    if key not in self._said:
      self.ask([words])
    said = self._said[key]
    if isinstance(said, errors.SickError):
      self._hung.add(words[0])
    if isinstance(said, errors.UnseenError):
      raise said
    return said

  def ask(self, commands: Iterable[Sequence[str]]) -> None:
    """Runs programs at the same time; `command` then knows what they print.

    Where a driver starts with each program, one after another takes minutes.
    """
    keys = list(dict.fromkeys(tuple(words) for words in commands))
    with concurrent.futures.ThreadPoolExecutor(max(1, len(keys))) as pool:
      self._said |= zip(keys, pool.map(self._answer, keys), strict=True)

  def _answer(self, words) -> str | errors.UnseenError:
    try:
      return self._ask(words)
    except errors.UnseenError as error:
      return error

  def _ask(self, words: Sequence[str]) -> str:
    try:
      process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors='replace',
        start_new_session=True,
        env={**os.environ, 'LC_ALL': 'C'},
      )
    except OSError as error:
      raise errors.UnseenError(f'{words[0]}: {error.strerror}') from error
    try:
      text, _ = process.communicate(timeout=TOOL_S)
    except subprocess.TimeoutExpired as error:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
      # One that waits for a device or a file system cannot even be killed.
      with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=1)
      raise errors.SickError(
        f'{words[0]} does not end within {TOOL_S:g} s'
      ) from error
    if process.returncode:
      last = (text.strip().splitlines() or ['nothing'])[-1]
      raise errors.UnseenError(
        f'{words[0]} ended with {process.returncode}: {last[:120]}'
      )
    return text

  def files(self, pattern: str) -> dict[str, str]:
    """The text of each file that can be read; what is not there is absent."""
    found = {}
    for path in sorted(glob.glob(pattern)):
      with contextlib.suppress(OSError):
        found[path] = pathlib.Path(path).read_text(errors='replace')
    return found

  def fact(self, name: str) -> values.Values:
    """A fact of `FACTS`, by place.

    Raises:
      UnseenError: if it cannot be seen.
    """
    return FACTS[name](self)


def _devices(node: Node) -> values.Values:
  """Each GPU that its driver knows."""
  tags = node.tags()
  if 'nvidia' in tags:
    query = '--query-gpu=index,name', '--format=csv,noheader'
    try:
      return values.csv(node.command(('nvidia-smi', *query)))
    except errors.UnseenError as error:
      if 'ended with' in str(error):  # A GPU that is lost makes it fail.
        raise errors.SickError(str(error)) from error
      raise
    except ValueError as error:
      raise errors.SickError(f'nvidia-smi: {error}') from error
  if 'rocm' in tags:
    return {f'node {n}': 'a GPU' for n in _kfd_gpus(node)}
  return {}


def _kfd_gpus(node: Node) -> list[str]:
  texts = node.files(f'{_KFD}/*/gpu_id')  # That of a CPU is 0.
  return [
    path.split('/')[-2] for path, text in texts.items() if text.strip() != '0'
  ]


def _xgmi_links(node: Node) -> values.Values:
  """XGMI links of each GPU."""
  links = {
    n: node.files(f'{_KFD}/{n}/io_links/*/properties').values()
    for n in _kfd_gpus(node)
  }
  if not links:
    raise errors.UnseenError(f'{_KFD} shows no GPU')
  return {
    f'node {n}': float(sum(bool(_XGMI.search(text)) for text in texts))
    for n, texts in links.items()
  }


def _versions(node: Node) -> values.Values:
  """The first two numbers of each: patches of a plugin come later."""
  names = ['jax', 'jaxlib', *_plugins(node)]
  short = lambda name: '.'.join(metadata.version(name).split('.')[:2])
  return {name: short(name) for name in names}


def _plugins(node: Node) -> values.Values:
  del node
  names = {str(d.metadata['Name']) for d in metadata.distributions()}
  found = sorted(name for name in names if _PLUGINS.fullmatch(name))
  return {name: metadata.version(name) for name in found}


def _environment(node: Node) -> values.Values:
  """What a training process should have, and this one has or has not."""
  del node
  if not _ENVIRONMENT.exists():
    raise errors.UnseenError('there is no deploy/mi300x.env beside the package')
  lines = _ENVIRONMENT.read_text().splitlines()
  pairs = [line.partition('=') for line in lines if line[:1].isalpha()]
  found: values.Values = {}
  for name, _, value in pairs:
    mine = os.environ.get(name)
    other = 'not set' if mine is None else f'{mine[:40]!r}, not {value[:40]!r}'
    found[name] = 'as there' if mine == value else other
  return found


def _limit(number: int) -> Callable[[Node], values.Values]:
  def read(node: Node) -> values.Values:
    del node
    soft, _ = resource.getrlimit(number)
    return {'': float('inf') if soft == resource.RLIM_INFINITY else float(soft)}

  return read


def _of_run(name: str) -> Callable[[Node], values.Values]:
  return lambda node: node.runs.values(name)


FACTS: dict[str, Callable[[Node], values.Values]] = {
  'devices': _devices,
  'xgmi_links': _xgmi_links,
  'versions': _versions,
  'plugins': _plugins,
  'environment': _environment,
  'memlock': _limit(resource.RLIMIT_MEMLOCK),
  'nofile': _limit(resource.RLIMIT_NOFILE),
  **{f'run_{name}': _of_run(name) for name in ('chip', *short_runs.RUNS)},
}
