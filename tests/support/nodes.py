# SPDX-License-Identifier: Apache-2.0
"""Nodes for preflight, made of what their programs print and their files say.

The forms are those of nvidia-smi on H100s, of sysfs and of amd-smi's
documentation (tests/golden/telemetry).
"""

import os
import pathlib
import re

from zaya_jax.preflight import errors
from zaya_jax.preflight import node as node_lib

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden' / 'telemetry'
PORTS = 8
GPUS = 8

_NVIDIA = {
  'memory.total': '81559',
  'memory.used': '4',
  'clocks.max.sm': '1980',
  'clocks_throttle_reasons.hw_slowdown': 'Not Active',
  'ecc.mode.current': 'Enabled',
  'ecc.errors.uncorrected.volatile.total': '0',
  'pcie.link.width.current,pcie.link.width.max': '16, 16',
  'driver_version': '570.86.15',
  'fabric.state': 'Completed',
  'name': 'NVIDIA H100 80GB HBM3',
}
_REMAPPED = ('remapped_rows.pending', 'remapped_rows.failure')


class StandIn(node_lib.Node):
  """A node of which everything is said here.

  Attributes:
    programs: what a command line prints, or the error that it raises.
    texts: what each file says.
    facts: values of facts; of others the node's own.
    all_tags: which rules are for it.
  """

  def __init__(self, tags: set[str]):
    super().__init__()
    self.programs: dict[str, str | Exception] = {}
    self.texts: dict[str, str] = {}
    self.facts: dict = {}
    self.all_tags = {'any', *tags}

  def tags(self):
    return self.all_tags

  def command(self, words):
    line = ' '.join(words)
    said = self.programs.get(line)
    if said is None:
      raise errors.UnseenError(f'{words[0]}: No such file or directory')
    if isinstance(said, Exception):
      raise said
    return said

  def ask(self, commands):
    pass

  def files(self, pattern):
    form = re.escape(os.path.normpath(pattern)).replace(r'\*', '[^/]+')
    return {p: t for p, t in self.texts.items() if re.fullmatch(form, p)}

  def fact(self, name):
    return self.facts[name] if name in self.facts else super().fact(name)


def query(field: str) -> str:
  """The command line that asks nvidia-smi for a field of each GPU."""
  form = '--format=csv,noheader,nounits'
  if field in _REMAPPED:
    return f'nvidia-smi --query-remapped-rows=gpu_bus_id,{field} {form}'
  form = '--format=csv,noheader' if field == 'name' else form
  return f'nvidia-smi --query-gpu=index,{field} {form}'


def answer(value: str, **others: str) -> str:
  """A line for each GPU; `gpu3='1'` gives one another value."""
  return ''.join(f'{i}, {others.get(f"gpu{i}", value)}\n' for i in range(GPUS))


def nvlink(slow: str = '26.562 GB/s', links: int = 18) -> str:
  """What nvidia-smi prints of 18 links of each GPU, of which one is another."""
  lines = []
  for gpu in range(GPUS):
    lines.append(f'GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: GPU-{gpu})')
    for link in range(links if gpu == 5 else 18):
      mine = slow if (gpu, link) == (5, 2) else '26.562 GB/s'
      lines.append(f'\t Link {link}: {mine}')
  return '\n'.join(lines)


def _card(
  number: int, *, rate: str, link: str, kind: int, width: int
) -> dict[str, str]:
  """The files of a network card in a slot of 16 lanes."""
  card = f'/sys/class/infiniband/mlx5_{number}'
  return {
    f'{card}/ports/1/state': '4: ACTIVE\n',
    f'{card}/ports/1/rate': f'{rate}\n',
    f'{card}/ports/1/link_layer': f'{link}\n',
    f'{card}/device/device': f'{kind:#x}\n',
    f'{card}/device/current_link_width': f'{width}\n',
    f'{card}/device/max_link_width': '16\n',
  }


def _common(node: StandIn) -> StandIn:
  for i in range(PORTS):
    rate = '400 Gb/sec (4X NDR)'
    node.texts |= _card(i, rate=rate, link='InfiniBand', kind=0x1021, width=16)
  # The card of the storage is another and slower one.
  rate = '100 Gb/sec (4X EDR)'
  node.texts |= _card(8, rate=rate, link='Ethernet', kind=0x101D, width=8)
  node.texts |= {
    '/proc/sys/kernel/numa_balancing': '0\n',
    '/sys/kernel/mm/transparent_hugepage/enabled': 'always [madvise] never\n',
  }
  node.programs |= {
    'df -B1 --output=size /dev/shm': '   1B-blocks\n1081101176832\n',
    'df -B1 --output=avail /': '       Avail\n7000000000000\n',
    'timedatectl show --property=NTPSynchronized --value': 'yes\n',
  }
  node.facts |= {
    'memlock': {'': float('inf')},
    'nofile': {'': 1048576.0},
    'versions': {'jax': '0.10', 'jaxlib': '0.10', 'plugin': '0.10'},
    'plugins': {'plugin': '0.10.2'},
    'run_chip': {'': 'as there'},
    'run_memory': {f'device {i}': 0.98 + i / 100 for i in range(GPUS)},
    'run_transfer': {'to device': 0.93, 'to host': 1.01},
    'run_collective': {'all-reduce': 0.97},
  }
  return node


def h100() -> StandIn:
  """A fit node of eight H100s."""
  node = _common(StandIn({'gpu', 'nvidia', 'rdma'}))
  node.programs |= {query(f): answer(v) for f, v in _NVIDIA.items()}
  node.programs |= {query(f): answer('0') for f in _REMAPPED}
  node.programs['nvidia-smi nvlink --status'] = nvlink()
  return node


def mi300x() -> StandIn:
  """A fit node of eight MI300X, of which amd-smi tells of two."""
  node = _common(StandIn({'gpu', 'rocm', 'rdma'}))
  for i in range(GPUS):
    device = f'/sys/class/drm/card{i + 1}/device'
    node.texts |= {
      f'{device}/mem_info_vram_total': '206141652992\n',
      f'{device}/mem_info_vram_used': '297021440\n',
      f'{device}/pp_dpm_sclk': '0: 132Mhz *\n1: 2100Mhz\n',
      f'{device}/power_dpm_force_performance_level': 'auto\n',
      f'{device}/current_link_width': '16\n',
      f'{device}/max_link_width': '16\n',
    }
  nodes = '/sys/class/kfd/kfd/topology/nodes'
  for i in range(2 + GPUS):
    node.texts[f'{nodes}/{i}/gpu_id'] = f'{i > 1 and 1000 + i or 0}\n'
    for j in range(GPUS):
      kind = 11 if i > 1 and j else 2
      text = f'type {kind}\nversion_major 0\nweight 15\n'
      node.texts[f'{nodes}/{i}/io_links/{j}/properties'] = text
  for words, name in (
    ('static --ras', 'ras'),
    ('metric', 'metric'),
    ('bad-pages', 'pages'),
  ):
    text = (GOLDEN / f'amd_smi_{name}_clear.json').read_text()
    node.programs[f'amd-smi {words} --json'] = text
  node.facts['environment'] = {'GPU_MAX_HW_QUEUES': 'as there'}
  return node
