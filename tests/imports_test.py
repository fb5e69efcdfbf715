# SPDX-License-Identifier: Apache-2.0
"""Who may import whom: rooms lie on floors, and an arrow only goes down.

A room is a folder. The rooms of `FLOORS` are ordered by hand; inside a room,
folders and files may have any order that has no circle.
"""

import ast
import graphlib
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent

# From the top. Rooms of one floor do not import each other.
FLOORS = (
  ('zaya_jax', 'zaya_jax.main'),  # 'zaya_jax': the package's __init__.py.
  ('zaya_jax.convert', 'zaya_jax.plan', 'zaya_jax.preflight'),
  ('zaya_jax.train',),
  ('zaya_jax.inference',),
  (
    'zaya_jax.aegis',
    'zaya_jax.data',
    'zaya_jax.hub',
    'zaya_jax.plan.cost',
    'zaya_jax.report',
  ),
  ('zaya_jax.bench', 'zaya_jax.checkpoint', 'zaya_jax.metrics'),
  ('zaya_jax.runtime',),
  ('zaya_jax.model', 'zaya_jax.optim'),
  ('zaya_jax.parallel',),
  ('ops', 'pipelines', 'zaya_jax.config'),
)

# All that these may import from outside the standard library.
ONLY = {
  'ops': {'jax', 'numpy'},
  'pipelines': {
    'absl',
    'array_record',
    'fsspec',
    'gigatoken',
    'grain',
    'jinja2',
    'numpy',
    'pyarrow',
    'tokenizers',
    'zstandard',
  },
  # It outlives what jax does to a process.
  'zaya_jax.aegis': {'prometheus_client'},
  # `--help` must come before jax could be imported.
  'zaya_jax.config': {'absl'},
}

# Packages whose name on PyPI is another, for BUILD; and what its tests, which
# need no PyTorch and no ROCm, do not need.
PYPI = {
  'absl': 'absl_py',
  'orbax': 'orbax_checkpoint',
  'tensorboardX': 'tensorboardx',
}
OPTIONAL = {
  'datasets',
  'gigatoken',
  'jax_rocm7_plugin',
  'lm_eval',
  'mlflow',
  'tqdm',
  'wandb',
  'yaml',
}

# Libraries with one home.
HOMES = {
  'array_record': {'pipelines'},
  'etcd3gw': {'zaya_jax.runtime'},
  'grain': {'pipelines'},
  'jinja2': {'pipelines', 'zaya_jax.report'},
  'kubernetes': {'zaya_jax.runtime'},
  'lm_eval': {'zaya_jax.inference'},
  'mlflow': {'zaya_jax.metrics'},
  'orbax': {'zaya_jax.checkpoint'},
  'prometheus_client': {
    'zaya_jax.aegis',
    'zaya_jax.inference',
    'zaya_jax.metrics',
  },
  'safetensors': {'zaya_jax.convert', 'zaya_jax.hub'},
  'starlette': {'zaya_jax.inference'},
  'tensorboardX': {'zaya_jax.metrics'},
  'tensorstore': {'zaya_jax.checkpoint'},
  'tokenizers': {'pipelines'},
  'torch': set(),
  'transformers': set(),
  'uvicorn': {'zaya_jax.inference'},
  'wandb': {'zaya_jax.metrics'},
}


def violations(root: pathlib.Path) -> list[str]:
  """Lists the imports under `root` that break a rule, one sentence each."""
  imports = _all_imports(root)
  found = [
    f'{module} imports {name}: {fault}.'
    for module, names in imports.items()
    for name in names
    if (fault := _fault(module, name))
  ]
  arrows = _arrows(imports)
  for kind, graph in (('files', arrows), ('folders', _folders(root, arrows))):
    try:
      graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
      found.append(f'A circle of {kind}: {" <- ".join(error.args[1])}.')
  return found


def _all_imports(root: pathlib.Path) -> dict[str, list[str]]:
  """What each module imports, in a fixed order."""
  return {
    _module_name(path.relative_to(root)): sorted(_imports(path))
    for top in ('ops', 'pipelines', 'zaya_jax')
    for path in sorted((root / top).rglob('*.py'))
  }


def _module_name(path: pathlib.PurePath) -> str:
  parts = path.with_suffix('').parts
  return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


def _imports(path: pathlib.Path) -> set[str]:
  """Absolute names; `from a import b` counts as a.b, relative ones as '.'."""
  names = set()
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      names |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom) and node.level:
      names.add('.')
    elif isinstance(node, ast.ImportFrom):
      names |= {f'{node.module}.{alias.name}' for alias in node.names}
  return names


def _arrows(imports: dict[str, list[str]]) -> dict[str, set[str]]:
  """The files that each file imports; a name in a file counts as that file."""
  arrows = {module: set() for module in imports}
  for module, names in imports.items():
    for name in names:
      target = name if name in imports else name.rpartition('.')[0]
      if target in imports and target != module:
        arrows[module].add(target)
  return arrows


def _folders(
  root: pathlib.Path, arrows: dict[str, set[str]]
) -> dict[str, set[str]]:
  """The folders that each folder imports from."""

  def folder(module):
    is_package = (root / module.replace('.', '/')).is_dir()
    name = module if is_package else module.rpartition('.')[0]
    # An operation is one folder: its engines, packages or not, share its api.
    is_engine = name.startswith('ops.') and name.count('.') > 1
    return name.rpartition('.')[0] if is_engine else name

  folders = {}
  for module, targets in arrows.items():
    # The root of zaya_jax is no room: its two files are doors.
    here = folder(module)
    there = {folder(target) for target in targets} - {here, 'zaya_jax', 'ops'}
    folders.setdefault(here, set()).update(there)
  return folders


def _fault(module: str, name: str) -> str | None:
  if name == '.':
    return 'imports are absolute'
  if _room(module) is None:
    return f'{module} has no floor; give it one in tests/imports_test.py'
  if name.split('.')[0] in ('ops', 'pipelines', 'zaya_jax'):
    return _local_fault(_room(module), name)
  return _library_fault(_room(module), name.split('.')[0])


def _needs(root: pathlib.Path) -> dict[str, set[str]]:
  """What the files of each room import from outside of it, as BUILD says it."""
  needs = {room: set() for floor in FLOORS for room in floor}
  for module, names in _all_imports(root).items():
    for name in names:
      room, library = _room(name), name.split('.')[0]
      if room is not None:
        needs[_room(module)].add(room.rpartition('.')[2])
      elif library not in sys.stdlib_module_names:
        needs[_room(module)].add(PYPI.get(library, library))
  return {
    room: found - OPTIONAL - {room.rpartition('.')[2]}
    for room, found in needs.items()
  }


def _local_fault(room: str, name: str) -> str | None:
  target = _room(name)
  if target is None:
    return f'{name} has no floor'
  if target == room:
    return None
  if room in ('ops', 'pipelines'):
    return f'{room} stands alone'
  if _floor(target) <= _floor(room):
    return f'{target} is not below {room}'
  return None


def _library_fault(room: str, library: str) -> str | None:
  if library in sys.stdlib_module_names:
    return None
  if room in ONLY and library not in ONLY[room]:
    return f'{room} may import only {sorted(ONLY[room])}'
  if library in HOMES and room not in HOMES[library]:
    return f'the home of {library} is {sorted(HOMES[library])}'
  return None


def _room(name: str) -> str | None:
  """The entry of FLOORS that covers `name`."""
  rooms = {room for floor in FLOORS for room in floor}
  parts = name.split('.')
  for room in ('.'.join(parts[:n]) for n in (3, 2, 1)):
    # A new zaya_jax/x.py must not pass for the package's __init__.py.
    if room in rooms and (room != 'zaya_jax' or name == 'zaya_jax'):
      return room
  return None


def _floor(room: str) -> int:
  return next(i for i, floor in enumerate(FLOORS) if room in floor)


def test_imports_only_go_down():
  assert not violations(ROOT), '\n'.join(violations(ROOT))


def test_bazel_knows_what_each_room_imports():
  [table] = [
    ast.literal_eval(node.value)
    for node in ast.parse((ROOT / 'BUILD').read_text()).body
    if isinstance(node, ast.Assign) and node.targets[0].id == '_LIBRARIES'
  ]
  said = {
    folder.replace('/', '.'): set(' '.join(needs).split())
    for folder, needs in table.items()
  }
  said['zaya_jax.report'].remove('plotly')  # Its script, which is a file.
  found = _needs(ROOT)
  # The doors import when they are asked.
  assert said == {room: found[room] for room in found if room in said}
  assert set(found) - set(said) == {'zaya_jax', 'zaya_jax.main'}


def test_every_folder_is_read():
  for top in ('ops', 'pipelines', 'zaya_jax'):
    assert list((ROOT / top).rglob('*.py'))


def test_there_are_ten_floors_and_two_doors():
  assert len(FLOORS) <= 10
  doors = {path.name for path in (ROOT / 'zaya_jax').glob('*.py')}
  assert doors == {'__init__.py', 'main.py'}


@pytest.mark.parametrize(
  'path, source, rule',
  [
    ('ops/a.py', 'from zaya_jax import config', 'ops stands alone'),
    ('ops/a.py', 'import flax', 'ops may import only'),
    ('pipelines/a.py', 'import ops', 'pipelines stands alone'),
    ('zaya_jax/config/a.py', 'import jax', "may import only ['absl']"),
    ('zaya_jax/optim/a.py', 'from zaya_jax.model import b', 'is not below'),
    ('zaya_jax/model/a.py', 'from zaya_jax.optim import b', 'is not below'),
    ('zaya_jax/train/a.py', 'from zaya_jax import plan', 'is not below'),
    ('zaya_jax/train/a.py', 'from zaya_jax.model import b', None),
    ('zaya_jax/train/a.py', 'import orbax.checkpoint as ocp', 'the home of'),
    ('zaya_jax/train/a.py', 'def f():\n  import torch', 'the home of'),
    ('zaya_jax/model/a.py', 'from . import b', 'imports are absolute'),
    ('zaya_jax/novel.py', 'import jax', 'has no floor'),
    ('zaya_jax/train/a.py', 'from zaya_jax import novel', 'has no floor'),
  ],
)
def test_violation_is_caught(tmp_path, path, source, rule):
  file = tmp_path / path
  file.parent.mkdir(parents=True)
  file.write_text(source)
  found = violations(tmp_path)
  assert len(found) == (rule is not None)
  assert all(rule in sentence for sentence in found)


@pytest.mark.parametrize(
  'files, kind',
  [
    ({'a': 'from zaya_jax.plan import b', 'b': 'import zaya_jax.plan.a'}, 1),
    ({'c/a': 'from zaya_jax.plan.d import b', 'd/b': '', 'd/e': ''}, 0),
    (
      {
        'c/a': 'from zaya_jax.plan.d import b',
        'd/b': '',
        'd/e': 'from zaya_jax.plan.c import f',
        'c/f': '',
      },
      1,
    ),
    ({'a': 'from zaya_jax.plan.c import f', 'c/f': ''}, 0),
    (
      {
        'a': 'from zaya_jax.plan.c import f',
        'b': '',
        'c/f': 'from zaya_jax.plan import b',
      },
      1,
    ),
  ],
)
def test_circle_is_caught(tmp_path, files, kind):
  for name, source in files.items():
    path = tmp_path / 'zaya_jax' / 'plan' / f'{name}.py'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
  found = violations(tmp_path)
  assert [sentence.startswith('A circle of') for sentence in found] == (
    [True] * kind
  )
