# SPDX-License-Identifier: Apache-2.0
"""The wheel zaya-conform: complete, without jax; it tells right from wrong."""

import json
import os
import pathlib
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import safetensors.numpy

from tests.support import scripts
from zaya_jax import config
from zaya_jax.convert import conformance

ROOT = pathlib.Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(
  not (ROOT / '.gitignore').exists(), reason='Bazel gives a part of the files'
)


@pytest.fixture(scope='module')
def setup():
  return scripts.load('deploy/conform/setup.py')


@pytest.fixture
def port(tmp_path):
  """A function: what is added to the last logits -> a file of a port."""

  def give(error=0.0):
    expected = safetensors.numpy.load_file(
      conformance.KIT / 'expected.safetensors'
    )
    logits = np.nan_to_num(expected['logits'])
    logits[:, -1] += np.float32(error)
    path = tmp_path / f'port{error}.safetensors'
    safetensors.numpy.save_file({'logits': logits}, path)
    return path

  return give


def run(*words, **more):
  return subprocess.run(
    [str(word) for word in words],
    capture_output=True,
    text=True,
    check=False,
    timeout=300,
    **more,
  )


def test_the_package_compares_without_jax(setup, tmp_path, port):
  setup.assemble(tmp_path / 'there/zaya_conform')
  script = (
    'import sys\nfrom zaya_conform import command\ncode = command.main()\n'
    'sys.exit(99 if {"jax", "zaya_jax"} & {*sys.modules} else code)'
  )

  def conform(*words):
    env = {'PATH': os.environ['PATH'], 'PYTHONPATH': str(tmp_path / 'there')}
    return run(
      *(sys.executable, '-c', script, *words), env=env, cwd=tmp_path
    )  # Not the repository, which has zaya_jax.

  done = conform('--source', port())
  assert done.returncode == 0, done.stderr
  assert json.loads(done.stdout)['agreeing'] == 1
  done = conform('--source', port(1.0))
  assert done.returncode == 3
  assert json.loads(done.stdout)['first']['name'] == 'logits'
  assert 'first difference: logits' in done.stderr
  done = conform('--source=nowhere')
  assert done.returncode == 2
  assert done.stderr == 'There is no file or folder nowhere (--source).\n'
  safetensors.numpy.save_file(
    {'mine': np.zeros(1)}, tmp_path / 'wrong.safetensors'
  )
  done = conform('--source=wrong.safetensors')
  assert done.returncode == 3 and done.stderr.startswith('None of the names')
  assert conform('--output=kit').returncode == 0
  names = lambda folder: {str(x.relative_to(folder)) for x in folder.rglob('*')}
  assert names(tmp_path / 'kit') == names(conformance.KIT)
  done = conform('--output=kit')
  assert done.returncode == 2 and 'exists already' in done.stderr


def test_an_import_that_the_wheel_lacks_ends_the_build(setup):
  good = 'from zaya_jax.hub.tensors import errors\n'
  assert setup.rewritten(good) == 'from zaya_conform import errors\n'
  with pytest.raises(ValueError, match='from zaya_jax.hub import leaves'):
    setup.rewritten(good + 'from zaya_jax.hub import leaves\n')


def test_version_and_ranges_are_those_of_the_repository(setup):
  assert setup.version() == config.VERSION
  lines = (ROOT / 'requirements.txt').read_text().splitlines()
  assert set(setup.needs()[1:]) <= set(lines)


@pytest.mark.long
def test_an_installed_wheel_compares(tmp_path, port):
  """By pip into an empty environment; the requirements come from PyPI."""
  python = tmp_path / 'venv/bin/python'
  quiet = ('-q', '--disable-pip-version-check')
  build = ('wheel', *quiet, '--no-deps', '-w', tmp_path)
  for words in (
    (sys.executable, '-m', 'venv', tmp_path / 'venv'),
    (python, '-m', 'pip', *build, ROOT / 'deploy/conform'),
  ):
    assert not run(*words).returncode
  [wheel] = tmp_path.glob('*.whl')
  assert wheel.stat().st_size < 1e6
  tops = {name.split('/')[0] for name in zipfile.ZipFile(wheel).namelist()}
  assert {x for x in tops if 'dist-info' not in x} == {'zaya_conform'}
  done = run(python, '-m', 'pip', 'install', *quiet, '--no-compile', wheel)
  assert not done.returncode, done.stderr
  names = run(python, '-m', 'pip', 'list').stdout
  assert 'jax' not in names and 'zaya-conform' in names.replace('_', '-')
  command = python.with_name('zaya-conform')
  env = {'PATH': os.environ['PATH']}
  assert run(command, '--source', port(), env=env).returncode == 0
  assert run(command, '--source', port(1.0), env=env).returncode == 3
