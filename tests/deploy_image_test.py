# SPDX-License-Identifier: Apache-2.0
"""deploy/Dockerfile: what it copies is there, and its versions are ours."""

import fnmatch
import pathlib
import re
import tomllib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
in_checkout = pytest.mark.skipif(
  not (ROOT / '.gitignore').exists(), reason='Bazel gives a part of the files'
)
pytestmark = in_checkout
LOCK = re.compile(r'^([\w.-]+)==([^\s\\]+)', re.M)


def read(name):
  return (ROOT / name).read_text()


@pytest.fixture
def lines():
  """Its instructions, each on one line."""
  text = read('deploy/Dockerfile').replace('\\\n', ' ')
  return [x for x in text.splitlines() if x and not x.startswith('#')]


def copied(lines):
  """What it takes from the repository."""
  words = [x.split()[1:-1] for x in lines if x.startswith('COPY ')]
  return [name for x in words for name in x if '--from=' not in x[0]]


def top(path):
  return path.partition('/')[0]


def arguments(lines):
  found = (x.removeprefix('ARG ') for x in lines if x.startswith('ARG '))
  return dict(x.split('=', 1) for x in found if '=' in x)


def let_through(name, patterns):
  """Whether a file at the root comes through .dockerignore; the last counts."""
  out = False
  for pattern in patterns:
    if fnmatch.fnmatch(name, pattern.lstrip('!')):
      out = not pattern.startswith('!')
  return not out


def test_it_copies_what_exists_and_is_let_through(lines):
  patterns = [
    x for x in read('.dockerignore').splitlines() if x and x[0] != '#'
  ]
  assert len(copied(lines)) > 9
  for name in copied(lines):
    assert (ROOT / name).exists() and let_through(top(name), patterns), name
  for name in ('.git', '.venv', 'runs', 'tests', 'build'):
    assert not let_through(name, patterns), name
  allowed = {x[1:] for x in patterns if x.startswith('!')}
  assert allowed == {top(name) for name in copied(lines)}


def test_all_that_the_wheel_is_made_of_is_copied(lines):
  project = tomllib.loads(read('pyproject.toml'))
  needed = {project['project']['readme'], *project['project']['license-files']}
  needed |= {*project['tool']['setuptools']['dynamic']['dependencies']['file']}
  needed |= {x.split('.')[0] for x in
             project['tool']['setuptools']['package-data']}  # fmt: skip
  assert needed | {'pyproject.toml', 'setup.py'} <= set(copied(lines))


def test_its_versions_are_those_of_the_lock_and_the_extras(lines):
  arg = arguments(lines)
  (locked,) = re.findall(r'--python-version (\S+)', read('Makefile'))
  assert arg['PYTHON'] == locked
  extras = tomllib.loads(read('pyproject.toml'))['project'][
    'optional-dependencies'
  ]
  stages = [x.split(' AS ') for x in lines if x.startswith('FROM ')]
  machines = [name for _, name in stages if name != 'wheel']
  assert machines == ['rocm', 'cuda', 'cpu']  # The last is the default.
  assert {'rocm', 'cuda', arg['EXTRAS']} <= extras.keys()
  installs = [x for x in lines if x.startswith('RUN /image/image.sh')]
  assert [x.split()[2].partition(',')[0] for x in installs] == [
    *machines[:2],
    '${EXTRAS}',
  ]
  (rocm,) = re.findall(r'rocm(\d+)', extras['rocm'][0])
  assert arg['ROCM'].split('.')[0] == rocm


def test_the_lock_holds_every_requirement_and_the_compiler_for_rocm():
  locked = {
    name.lower().replace('_', '-'): version
    for name, version in LOCK.findall(read('requirements_lock.txt'))
  }
  for line in read('requirements.txt').splitlines():
    if line and line[0] != '#':
      name = re.match(r'[\w-]+', line)[0].lower().replace('_', '-')
      assert name in locked, name
  # A plan and an image have one jax.
  assert f'jax=={locked["jax"]}\n' in read('requirements-rocm.txt')
  # What sed makes of the lock: each line a version, without hashes.
  (script,) = re.findall(r"sed -n '(.*?)'", read('deploy/image.sh'))
  assert script == r's/^\([^ ]*==[^\\]*\).*/\1/p'
  made = re.findall(
    r'^([^ \n]*==[^\\\n]*)', read('requirements_lock.txt'), re.M
  )
  assert len(made) == len(locked) and not any('--hash' in x for x in made)


def test_nobody_of_weight_runs_it_and_signals_pass(lines):
  targets = '\n'.join(lines).split('\nFROM ')[2:]
  assert len(targets) == 3
  for target in targets:
    *_, user, entry = target.splitlines()
    assert user == 'USER zaya'
    assert entry == 'ENTRYPOINT ["zaya"]'  # exec form.
  assert 'useradd' in read('deploy/image.sh')
  assert 'zaya' in tomllib.loads(read('pyproject.toml'))['project']['scripts']
