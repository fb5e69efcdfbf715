# SPDX-License-Identifier: Apache-2.0
"""The box, its Slurm, the undisturbed run; a table of what was measured."""

import json
import os
import pathlib
import shutil
import tempfile

import pytest

from benchmarks import record as record_lib
from tests.cluster import box as box_lib
from tests.cluster import slurm as slurm_lib
from tests.cluster import sshd as sshd_lib
from tests.cluster import trial

_PROGRAMS = {
  'slurmctld': 'slurm-wlm',
  'munged': 'munge',
  'sshd': 'openssh-server',
  'ip': 'iproute2',
  'mkfs.ext4': 'e2fsprogs',
}
_COLUMNS = ('trial', 'code', 'bit_equal', 'samples_lost', 'samples_repeated')
_COLUMNS += ('detect_s', 'recover_s', 'supervisors', 'incidents', 'passed')


def pytest_addoption(parser):
  parser.addoption('--cluster-report', help='file for results, as JSON')


def pytest_configure(config):
  lacking = {p for n, p in _PROGRAMS.items() if not shutil.which(n)}
  if os.geteuid() or lacking:
    raise pytest.UsageError(
      'The cluster tests make namespaces and mounts, so they need root, and '
      f'`apt-get install {" ".join(sorted(lacking or _PROGRAMS.values()))}`.'
    )
  config.stash[_ROWS] = []
  config.stash[_ABOUT] = record_lib.circumstances(
    'pytest tests/cluster', ('jax', 'orbax-checkpoint')
  )


_ROWS = pytest.StashKey[list[dict]]()
_ABOUT = pytest.StashKey[dict]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
  report = yield
  if call.when == 'call' and (row := getattr(item, 'row', None)):
    row |= {'passed': report.passed, 'took_s': round(call.duration, 1)}
    item.config.stash[_ROWS].append(row)
    print(json.dumps(row), flush=True)
    if path := item.config.getoption('--cluster-report'):
      _keep(pathlib.Path(path), item.config.stash[_ABOUT], row)
  return report


def _keep(path: pathlib.Path, about: dict, row: dict) -> None:
  """Writes a row in the place of that of an earlier trial."""
  before = json.loads(path.read_text()) if path.exists() else {}
  others = [x for x in before.get('trials', ()) if x['trial'] != row['trial']]
  dated = row | {'date': about['date'], 'load': round(os.getloadavg()[0], 1)}
  record_lib.write(path, {**before, **about, 'trials': [*others, dated]})


def pytest_terminal_summary(terminalreporter, config):
  rows = [[str(r.get(c, '')) for c in _COLUMNS] for r in config.stash[_ROWS]]
  rows = [list(_COLUMNS), *rows]
  wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
  for row in rows if len(rows) > 1 else ():
    cells = (x.ljust(n) for x, n in zip(row, wide, strict=True))
    terminalreporter.write_line('  '.join(cells).rstrip())


@pytest.fixture
def record(request):
  """A function that keeps the row of a test."""

  def keep(row: dict) -> dict:
    request.node.row = row
    return row

  return keep


@pytest.fixture(scope='session')
def folder():
  path = pathlib.Path(tempfile.mkdtemp(prefix='zaya_cluster_'))
  path.chmod(0o755)
  yield path
  if not os.environ.get('ZAYA_KEEP'):
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope='session')
def box(folder):
  made = box_lib.Box(folder, 4)
  yield made
  made.close()


@pytest.fixture(scope='session')
def site(box, folder):
  return trial.Site(box, folder)


@pytest.fixture(scope='session')
def expected(site):
  """What an undisturbed run on one machine comes to."""
  # The first one compiles; programs that are read from the cache of XLA round
  # differently on a CPU.
  for name in ('compiling', 'one_machine'):
    run = trial.Trial(site, name)
    run.start('--aegis.nodes=a,b')
    assert run.wait() == 0, run.log.read_text()
  return run.final()


@pytest.fixture(scope='session')
def cluster(box, folder):
  return slurm_lib.Slurm(box, folder)


@pytest.fixture(scope='session')
def servers(site, folder):
  return sshd_lib.Ssh(site, folder)


@pytest.fixture
def ssh(servers):
  servers.start()  # Another test may have switched a node off and on.
  return servers
