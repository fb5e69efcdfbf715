# SPDX-License-Identifier: Apache-2.0
"""The wheel claims one name and trains in an environment without a clone."""

import ast
import json
import os
import pathlib
import re
import subprocess
import sys
import zipfile

import pytest

from tests.support import scripts

ROOT = pathlib.Path(__file__).parents[1]
in_checkout = pytest.mark.skipif(
  not (ROOT / '.gitignore').exists(), reason='Bazel gives a part of the files'
)
# Such a text would name a module that a wheel has elsewhere.
_NAME = re.compile(r'(ops|pipelines)(\.\w+)+')


def _setup():
  return scripts.load('setup.py')


def _names(source):
  """What a module imports, and its texts that are names of modules."""
  imports, texts = set(), set()
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.ImportFrom):
      imports.add(node.module)
    elif isinstance(node, ast.Import):
      imports |= {alias.name for alias in node.names}
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
      if _NAME.fullmatch(node.value):
        texts.add(node.value)
  return imports, texts


@in_checkout
def test_no_module_in_the_wheel_names_one_outside_of_it():
  rewrite, changed = _setup().rewritten, 0
  for top in ('ops', 'pipelines', 'zaya_jax'):
    for path in (ROOT / top).rglob('*.py'):
      before = path.read_text()
      after = rewrite(before)
      imports, texts = _names(after)
      tops = {name.split('.')[0] for name in imports}
      assert not tops & {'ops', 'pipelines'} and not texts, path
      assert rewrite(after) == after
      changed += after != before
      assert len(after.splitlines()) == len(before.splitlines())
  assert changed > 100


@in_checkout
@pytest.mark.parametrize(
  'source, there',
  [
    ('import ops\n', 'from zaya_jax import ops\n'),
    ('from ops import a as b\n', 'from zaya_jax.ops import a as b\n'),
    ('def f():\n  from ops.a import b\n', None),
    ('from pipelines.a import (\n  b,\n)\n', None),
    (
      'from opsy import a\nimport opsy.b\n',
      'from opsy import a\nimport opsy.b\n',
    ),
    ("x = 'from ops import a'\n", "x = 'from ops import a'\n"),
  ],
)
def test_imports_are_rewritten(source, there):
  if there is None:
    there = re.sub(r'(ops|pipelines)\.', r'zaya_jax.\1.', source)
  assert _setup().rewritten(source) == there


@in_checkout
@pytest.mark.parametrize('source', ['import ops.a', 'import ops, sys'])
def test_an_import_that_cannot_be_rewritten_ends_the_build(source):
  with pytest.raises(ValueError, match='Write `from'):
    _setup().rewritten(source)


def _run(*words, **kwargs):
  done = subprocess.run(
    [str(word) for word in words],
    capture_output=True,
    text=True,
    check=False,
    **kwargs,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  return done.stdout


@in_checkout
@pytest.mark.long
def test_an_installed_wheel_trains_and_continues(tmp_path):
  """By pip into an empty environment; the requirements come from PyPI."""
  python = tmp_path / 'venv/bin/python'
  quiet = ('-q', '--disable-pip-version-check')
  _run(sys.executable, '-m', 'venv', tmp_path / 'venv')
  _run(python, '-m', 'pip', 'wheel', *quiet, '--no-deps', '-w', tmp_path, ROOT)
  [wheel] = tmp_path.glob('*.whl')
  names = zipfile.ZipFile(wheel).namelist()
  tops = {name.split('/')[0] for name in names}
  assert {top for top in tops if not top.endswith('.dist-info')} == {'zaya_jax'}
  assert 'zaya_jax/configs/chat/tokenizer.json' in names
  _run(python, '-m', 'pip', 'install', *quiet, '--no-compile', wheel)
  environment = {
    name: value
    for name, value in os.environ.items()
    if name not in ('PYTHONPATH', 'XLA_FLAGS')
  }
  here = {'cwd': tmp_path, 'env': environment}
  zaya = python.with_name('zaya')
  words = ['--num_steps=3', '--eval.batches=1', '--generate.max_tokens=8']
  _run(zaya, 'train', '--flagfile=configs/quickstart.flags', *words, **here)
  rows = (tmp_path / 'runs/quickstart/metrics.jsonl').read_text().splitlines()
  assert json.loads(rows[-1])['step'] == 3
  words = ['--run_dir=runs/quickstart', '--prompt=def ', *words[2:]]
  assert _run(zaya, 'generate', *words, **here).startswith('def ')
  asked = 'import sys, zaya_jax.ops; print("ops" in sys.modules)'
  assert _run(python, '-c', asked, **here) == 'False\n'
