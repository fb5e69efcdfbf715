# SPDX-License-Identifier: Apache-2.0
"""Each rule on fit nodes, and on their siblings with one thing broken."""

import pathlib

import pytest

from tests.support import nodes
from zaya_jax.preflight import errors, examine, rules, table

SAID = {'devices': nodes.GPUS, 'ports': 9}
KINDS = {'nvidia': nodes.h100, 'rocm': nodes.mi300x}
CARD = '/sys/class/infiniband/mlx5_3'
DRM = '/sys/class/drm/card4/device'
KFD = '/sys/class/kfd/kfd/topology/nodes'


def _examine(node, said=SAID):
  return examine.examine(node, said, run_dir='/')


def _wrong(node, said=SAID):
  """What is no fit, by name."""
  return {c.name: c for c in _examine(node, said) if c.outcome != 'fit'}


def _golden(name):
  return (nodes.GOLDEN / f'amd_smi_{name}_faults.json').read_text()


def _asks(field, value, **others):
  return {nodes.query(field): nodes.answer(value, **others)}


def test_fit_nodes_raise_no_alarm():
  for make in KINDS.values():
    for run in range(25):
      node = make()
      node.facts['run_memory'] = {'device 0': 0.9 + run / 100}
      node.programs |= _asks('memory.used', str(4 + 80 * run))
      for said in (SAID, {'devices': nodes.GPUS, 'ports': 0}):
        wrong = _wrong(node, said)
        # Nobody says how many ports there are.
        assert set(wrong) == ({'network_ports'} if not said['ports'] else set())


# Name of the rule, what programs say instead, what is found.
NVIDIA = [
  ('gpu_memory', _asks('memory.total', '81559', gpu2='40960'), 'GPU 2: 40960'),
  ('gpu_memory_in_use', _asks('memory.used', '4', gpu1='61000'), 'GPU 1'),
  ('gpu_clock', _asks('clocks.max.sm', '1980', gpu6='1200'), 'GPU 6: 1200 MHz'),
  (
    'gpu_slowdown',
    _asks('clocks_throttle_reasons.hw_slowdown', 'Not Active', gpu0='Active'),
    'GPU 0: Active',
  ),
  ('gpu_ecc', _asks('ecc.mode.current', 'Enabled', gpu4='Disabled'), 'GPU 4'),
  (
    'gpu_ecc_errors',
    _asks('ecc.errors.uncorrected.volatile.total', '0', gpu3='2'),
    'GPU 3: 2',
  ),
  (
    'gpu_ecc_errors',
    _asks('ecc.errors.uncorrected.volatile.total', '0', gpu3='[GPU is lost]'),
    'GPU 3: [GPU is lost]',
  ),
  ('gpu_rows_to_remap', _asks('remapped_rows.pending', '0', gpu7='1'), 'GPU 7'),
  (
    'gpu_rows_not_remapped',
    _asks('remapped_rows.failure', 'No', gpu7='Yes'),
    'GPU 7: Yes',
  ),
  (
    'gpu_pcie_width',
    _asks(
      'pcie.link.width.current,pcie.link.width.max', '16, 16', gpu5='8, 16'
    ),
    'GPU 5: 0.5 of its width',
  ),
  (
    'nvlink',
    {'nvidia-smi nvlink --status': nodes.nvlink('<inactive>')},
    'GPU 5: 451.554 GB/s',
  ),
  (
    'nvlink',
    {'nvidia-smi nvlink --status': nodes.nvlink('13.281 GB/s')},
    'GPU 5: 464.835 GB/s',
  ),
  (
    'nvlink',
    {'nvidia-smi nvlink --status': nodes.nvlink(links=0)},
    'GPU 5: 0 GB/s',
  ),
  (
    'nvlink_fabric',
    _asks('fabric.state', 'In Progress'),
    'GPU 0: In Progress, GPU 1',
  ),
  ('driver', _asks('driver_version', '570.86.15', gpu1='565.57'), 'GPU 1'),
  (
    'shared_memory',
    {'df -B1 --output=size /dev/shm': 'x\n67108864\n'},
    '0.0625',
  ),
  ('disk', {'df -B1 --output=avail /': 'Avail\n1048576\n'}, '0.000976562 GiB'),
]


@pytest.mark.parametrize('name, programs, found', NVIDIA)
def test_what_a_program_says_is_named(name, programs, found):
  node = nodes.h100()
  node.programs |= programs
  wrong = _wrong(node)
  assert list(wrong) == [name]
  assert wrong[name].outcome == 'fault' and found in wrong[name].found
  assert wrong[name].advice


@pytest.mark.parametrize(
  'name, path, text, found',
  [
    (
      'gpu_memory',
      f'{DRM}/mem_info_vram_total',
      '137438953472',
      'card4: 131072',
    ),
    (
      'gpu_memory_in_use',
      f'{DRM}/mem_info_vram_used',
      '8589934592',
      'card4: 8192',
    ),
    (
      'gpu_clock',
      f'{DRM}/pp_dpm_sclk',
      '0: 132Mhz\n1: 900Mhz *',
      'card4: 900 MHz',
    ),
    (
      'gpu_performance_level',
      f'{DRM}/power_dpm_force_performance_level',
      'low\n',
      'card4: low',
    ),
    ('gpu_pcie_width', f'{DRM}/current_link_width', '4\n', 'card4: 0.25'),
    ('xgmi_links', f'{KFD}/5/io_links/3/properties', 'type 2\n', 'node 5: 6'),
    ('devices', f'{KFD}/5/gpu_id', '0\n', '7 (node 2, node 3'),
    (
      'network_ports',
      f'{CARD}/ports/1/state',
      '1: DOWN\n',
      '8 (mlx5_3 1: DOWN)',
    ),
    (
      'network_rate',
      f'{CARD}/ports/1/rate',
      '200 Gb/sec (4X HDR)',
      'mlx5_3 1: 200',
    ),
    ('network_layer', f'{CARD}/ports/1/link_layer', 'Ethernet\n', 'mlx5_3 1'),
    (
      'network_pcie_width',
      f'{CARD}/device/current_link_width',
      '8\n',
      'mlx5_3: 0.5',
    ),
    ('numa_balancing', '/proc/sys/kernel/numa_balancing', '1\n', '1'),
  ],
)
def test_what_a_file_says_is_named(name, path, text, found):
  node = nodes.mi300x()
  assert path in node.texts
  node.texts[path] = text
  wrong = _wrong(node)
  assert list(wrong) == [name]
  assert wrong[name].outcome == 'fault' and found in wrong[name].found


@pytest.mark.parametrize(
  'command, golden, names',
  [
    ('metric --json', 'metric', {'gpu_ecc_errors', 'xgmi_errors'}),
    ('static --ras --json', 'ras', {'gpu_ras'}),
    ('bad-pages --json', 'pages', {'gpu_pages_pending'}),
  ],
)
def test_what_amd_smi_counts_is_named(command, golden, names):
  node = nodes.mi300x()
  node.programs[f'amd-smi {command}'] = _golden(golden)
  wrong = _wrong(node)
  assert set(wrong) == names
  assert all('GPU ' in c.found for c in wrong.values())


@pytest.mark.parametrize(
  'name, fact, values, outcome',
  [
    ('memlock', 'memlock', {'': 65536.0}, 'fault'),
    ('open_files', 'nofile', {'': 1024.0}, 'warning'),
    ('jax_versions', 'versions', {'jax': '0.10', 'jaxlib': '0.9'}, 'fault'),
    ('jax_plugin', 'plugins', {}, 'fault'),
    ('environment', 'environment', {'NCCL_PXN_DISABLE': 'not set'}, 'warning'),
    ('chip', 'run_chip', {'': 'H200, not H100'}, 'fault'),
    ('run_memory', 'run_memory', {'device 0': 1.0, 'device 1': 0.6}, 'fault'),
    ('run_transfer', 'run_transfer', {'to host': 0.3}, 'fault'),
    ('run_collective', 'run_collective', {'all-reduce': 0.5}, 'fault'),
  ],
)
def test_fact_that_is_wrong_is_named(name, fact, values, outcome):
  node = nodes.mi300x()
  node.facts[fact] = values
  wrong = _wrong(node)
  assert {n: c.outcome for n, c in wrong.items()} == {name: outcome}


@pytest.mark.parametrize('kind', KINDS)
def test_warning_leaves_a_node_fit(kind):
  node = KINDS[kind]()
  node.texts['/sys/kernel/mm/transparent_hugepage/enabled'] = 'always [never]'
  sync = 'timedatectl show --property=NTPSynchronized --value'
  node.programs[sync] = 'no\n'
  wrong = _wrong(node)
  assert {n: c.outcome for n, c in wrong.items()} == {
    'huge_pages': 'warning',
    'clock': 'warning',
  }
  assert table.verdict(list(wrong.values())).startswith('fit: ')


def test_lost_gpu_and_card_are_counted():
  node = nodes.h100()
  lines = node.programs[nodes.query('name')].splitlines()
  node.programs[nodes.query('name')] = '\n'.join(lines[:-1])
  for path in [p for p in node.texts if p.startswith(f'{CARD}/')]:
    del node.texts[path]
  wrong = _wrong(node)
  assert set(wrong) == {'devices', 'network_ports'}
  assert wrong['devices'].found.startswith('7 (GPU 0')
  assert 'GPU 7' not in wrong['devices'].found
  assert 'mlx5_3' not in wrong['network_ports'].found


def test_port_that_is_down_is_a_fault_unless_enough_are_active():
  node = nodes.h100()
  node.texts[f'{CARD}/ports/1/state'] = '1: DOWN'
  assert _wrong(node, {**SAID, 'ports': 8}) == {}
  assert set(_wrong(node)) == {'network_ports'}
  wrong = _wrong(node, {'devices': nodes.GPUS, 'ports': 0})
  assert wrong['network_state'].outcome == 'fault'
  assert wrong['network_state'].found == 'mlx5_3 1: DOWN'


def test_what_is_missing_is_not_checked():
  node = nodes.h100()
  node.programs, node.texts = {}, {}
  found = {c.name: c for c in _examine(node)}
  # It was said how many must be there.
  assert found.pop('network_ports').outcome == 'fault'
  fit = {name for name, c in found.items() if c.outcome == 'fit'}
  assert fit == {
    *('jax_versions', 'jax_plugin', 'memlock', 'open_files', 'chip'),
    *('run_memory', 'run_transfer', 'run_collective'),
  }
  others = [c for name, c in found.items() if name not in fit]
  assert {c.outcome for c in others} == {'not checked'}
  assert 'No such file' in found['gpu_clock'].found
  assert found['numa_balancing'].found.startswith('there is no /proc')


@pytest.mark.parametrize(
  'said, reason',
  [
    (nodes.answer('0', gpu2='[N/A]'), 'does not say of GPU 2'),
    (nodes.answer('[N/A]'), 'does not say it'),
    ('', 'does not say it'),
    ('no table', 'has another form'),
  ],
)
def test_value_that_is_not_said_is_not_checked(said, reason):
  node = nodes.h100()
  field = 'ecc.errors.uncorrected.volatile.total'
  node.programs[nodes.query(field)] = said
  [check] = _wrong(node).values()
  assert check.outcome == 'not checked' and reason in check.found


def test_program_that_hangs_is_a_fault():
  node = nodes.h100()
  words = nodes.query('clocks.max.sm')
  node.programs[words] = errors.SickError('nvidia-smi does not end')
  [check] = _wrong(node).values()
  assert (check.name, check.outcome) == ('gpu_clock', 'fault')


def test_most_of_a_kind_decide_and_a_tie_names_all():
  node = nodes.h100()
  lines = ''.join(f'{i}, {1980 - 700 * (i % 2)}\n' for i in range(8))
  node.programs[nodes.query('clocks.max.sm')] = lines
  [check] = _wrong(node).values()
  assert 'GPU 0: 1980' in check.found and 'and 4 more' in check.found


def test_each_rule_has_a_case_here():
  """What is said of each is read from the file that is shipped."""
  text = pathlib.Path(__file__).read_text()
  assert [r.name for r in rules.read() if f"'{r.name}'" not in text] == []
