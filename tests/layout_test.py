# SPDX-License-Identifier: Apache-2.0
"""Where files lie and how long they are; exceptions are listed, with reasons.

The lists of exceptions only shrink: what has become shorter, or has moved,
must leave them.
"""

import ast
import glob
import pathlib
import re
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
TOPS = ('ops', 'pipelines', 'zaya_jax')

MOST_ENTRIES = 14
MOST_LINES_OF_A_FILE = 300
MOST_LINES_OF_A_FUNCTION = 60

# Tests of no single file or folder of the sources: what they look at instead.
NO_SOURCE = {
  'deploy_alerts_test.py': 'deploy/prometheus/',
  'deploy_conform_test.py': 'deploy/conform/',
  'deploy_image_test.py': 'deploy/Dockerfile',
  'deploy_ray_test.py': 'deploy/prepare_ray.py',
  'deploy_test.py': 'deploy/',
  'docs_test.py': 'docs/',
  'environment_test.py': 'tests/conftest.py',
  'imports_test.py': 'the imports of all sources',
  'layout_test.py': 'the layout of all sources',
  'modes_test.py': 'the modes of zaya_jax.main, each with its module',
  'mutants_test.py': 'tests/mutants/',
  'notebooks_test.py': 'notebooks/',
  'release_test.py': 'CHANGELOG.md, CITATION.cff and ci/release.py',
  'site_test.py': 'ci/site.py',
  'wheel_test.py': 'setup.py',
  'benchmarks/ring_decode_test.py': 'benchmarks/peers/ring_decode.py',
  'ops/contract_test.py': 'every engine of every operation',
  'ops/lowering_test.py': 'every kernel, lowered for GPUs',
  'ops/native/emulation_test.py': 'the .hip files on a CPU',
  'ops/native/gfx942_test.py': 'the machine code of the .hip files',
  'ops/native/grouped_matmul_test.py': 'grouped_matmul.hip',
  'ops/native/muon_momentum_test.py': 'muon_momentum.hip',
  'ops/native/residual_rms_norm_test.py': 'residual_rms_norm.hip',
  'ops/native/symmetric_matmul_test.py': 'symmetric_matmul.hip',
  'ops/native/tile_banks_test.py': 'wave.h: where a tile lies in LDS',
  'ops/native/tile_order_test.py': 'tile.h: the order of tiles',
  'pipelines/prepare/chat_test.py': 'pipelines/prepare with conversations',
  'zaya_jax/inference/serve/load_test.py': 'the server, with many clients',
  'zaya_jax/inference/serve/page_test.py': 'serve/page.html in a browser',
  'zaya_jax/model/context_test.py': 'the model on a mesh with a context axis',
  'zaya_jax/model/engines_test.py': 'the engines that the model asks for',
  'zaya_jax/model/golden_test.py': 'the model against stored answers',
  'zaya_jax/model/linear_test.py': 'products of model/layers.py',
  'zaya_jax/optim/muon_on_mesh_test.py': 'optim/muon.py on eight devices',
  'zaya_jax/plan/compile/plan_1024_test.py': 'ci/plan_1024.py',
  'zaya_jax/report/browser_test.py': 'report/page.js in a browser',
  'zaya_jax/train/finetune_test.py': 'training that starts from a checkpoint',
  'zaya_jax/train/meshes_test.py': 'a step on every kind of mesh',
  'zaya_jax/train/recipe_test.py': 'training by a recipe, from end to end',
}

# Larger than allowed today, and how large they may be at most.
ENTRIES = {
  'ops': 15,  # One folder an operation.
  'zaya_jax': 18,  # One folder a room.
  'zaya_jax/runtime': 15,  # fence.py stays until nobody asks it.
}
LINES_OF_A_FILE = {
  'ops/hopper/persistent.py': 326,
}
LINES_OF_A_FUNCTION = {
  'ops/attention/hopper/forward.py:_weighted_sum': 69,
  'ops/attention/hopper/keys.py:_of_keys': 66,
  'ops/attention/hopper/queries.py:_of_queries': 68,
  'ops/hopper/persistent.py:launch': 76,
  'zaya_jax/parallel/context/tree.py:partial': 67,
}


def _sources(root):
  return [path for top in TOPS for path in sorted((root / top).rglob('*.py'))]


def entries(root: pathlib.Path) -> dict[str, int]:
  """How many files and folders each folder shows."""
  shown = {}
  for path in _sources(root):
    while path != root:
      if path.name != '__init__.py':
        shown.setdefault(path.parent, set()).add(path.name)
      path = path.parent
  del shown[root]
  return {str(path.relative_to(root)): len(n) for path, n in shown.items()}


def lines_of_files(root: pathlib.Path) -> dict[str, int]:
  """How many lines each source file has."""
  return {
    str(path.relative_to(root)): len(path.read_text().splitlines())
    for path in _sources(root)
  }


def lines_of_functions(root: pathlib.Path) -> dict[str, int]:
  """How many lines each function has, without its decorators."""
  return {
    f'{path.relative_to(root)}:{node.name}': node.end_lineno - node.lineno + 1
    for path in _sources(root)
    for node in ast.walk(ast.parse(path.read_text()))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
  }


def too_large(
  sizes: dict[str, int], limit: int, exceptions: dict[str, int]
) -> list[str]:
  """Says what is larger than it may be, and which exceptions are not needed."""
  found = [
    f'{name}: {size}, at most {exceptions.get(name, limit)}'
    for name, size in sizes.items()
    if size > exceptions.get(name, limit)
  ]
  return found + [
    f'{name}: needs no exception, take it from tests/layout_test.py'
    for name in exceptions
    if sizes.get(name, 0) <= limit
  ]


def without_source(root: pathlib.Path) -> set[str]:
  """The tests that mirror neither a file nor a folder of the sources."""
  tests = root / 'tests'
  return {
    str(path.relative_to(tests))
    for path in tests.rglob('*_test.py')
    if path.relative_to(tests).parts[0] not in ('parity', 'cluster', 'stores')
    and not _mirrors(root, path.relative_to(tests))
  }


def _mirrors(root, test):
  source = root / test.parent / test.name.removesuffix('_test.py')
  return (
    source.with_suffix('.py').exists()
    or (source / '__init__.py').exists()
    # The folder's own: prepare/prepare_test.py is that of prepare/.
    or (source.name == test.parent.name and source.parent.is_dir())
  )


@pytest.mark.parametrize(
  'measure, limit, exceptions',
  [
    (entries, MOST_ENTRIES, ENTRIES),
    (lines_of_files, MOST_LINES_OF_A_FILE, LINES_OF_A_FILE),
    (lines_of_functions, MOST_LINES_OF_A_FUNCTION, LINES_OF_A_FUNCTION),
  ],
)
def test_nothing_is_too_large(measure, limit, exceptions):
  assert too_large(measure(ROOT), limit, exceptions) == []


def test_each_test_mirrors_a_source():
  assert without_source(ROOT) == set(NO_SOURCE)


def test_what_is_too_large_is_found(tmp_path):
  room = tmp_path / 'zaya_jax' / 'room'
  room.mkdir(parents=True)
  for name in ('__init__', 'a', 'b'):
    (room / f'{name}.py').write_text('def f():\n  x = 1\n  return x\n\n')
  assert entries(tmp_path) == {'zaya_jax': 1, 'zaya_jax/room': 2}
  files = lines_of_files(tmp_path)
  assert set(files.values()) == {4}
  functions = lines_of_functions(tmp_path)
  assert functions['zaya_jax/room/a.py:f'] == 3
  assert not too_large(files, 4, {})
  assert len(too_large(files, 3, {})) == 3
  assert len(too_large(files, 3, {'zaya_jax/room/a.py': 4})) == 2
  [told] = too_large(files, 4, {'zaya_jax/room/a.py': 5})
  assert 'needs no exception' in told


def test_test_without_source_is_found(tmp_path):
  for name in ('ops/a/__init__.py', 'ops/a/b.py'):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).touch()
  for name in ('a_test.py', 'a/a_test.py', 'a/b_test.py', 'b_test.py'):
    path = tmp_path / 'tests/ops' / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
  assert without_source(tmp_path) == {'ops/b_test.py'}


def test_tests_that_make_names_exist():
  named = re.findall(r'tests/\S+\.py', (ROOT / 'Makefile').read_text())
  assert named and [path for path in named if not (ROOT / path).exists()] == []


def test_data_files_are_in_the_wheel():
  project = tomllib.loads((ROOT / 'pyproject.toml').read_text())
  packed = {
    str(folder / name)
    for package, globs in project['tool']['setuptools']['package-data'].items()
    for folder in [ROOT / package.replace('.', '/')]
    for pattern in globs
    for name in glob.glob(pattern, root_dir=folder, recursive=True)
  }
  data = {
    str(path)
    for top in TOPS
    for path in (ROOT / top).rglob('*')
    if path.is_file()
    and path.suffix not in ('.py', '.pyc')
    and ROOT / 'ops/native/build' not in path.parents
  }
  assert data and data - packed == set()
