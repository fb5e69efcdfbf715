# SPDX-License-Identifier: Apache-2.0
"""Who may import whom: modules lie on floors, and an arrow only goes down."""

import ast
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent

# From the top. Units of one floor do not import each other. A name covers what
# lies in it: zaya_jax.model covers zaya_jax.model.cca.
FLOORS = (
  ('zaya_jax', 'zaya_jax.main'),  # 'zaya_jax': the package's __init__.py.
  # The limits of bench are those of the plan.
  ('zaya_jax.bench', 'zaya_jax.report.mode'),
  (
    'zaya_jax.train',
    'zaya_jax.generate',
    'zaya_jax.evaluate',
    'zaya_jax.plan',
    'zaya_jax.report.router',  # It loads a model.
  ),
  ('zaya_jax.loop', 'zaya_jax.traced'),
  ('zaya_jax.start', 'zaya_jax.inherit', 'zaya_jax.aegis'),
  ('zaya_jax.models', 'zaya_jax.corpus', 'zaya_jax.score', 'zaya_jax.guard'),
  ('zaya_jax.step', 'zaya_jax.interop', 'zaya_jax.prepare', 'zaya_jax.report'),
  ('zaya_jax.gradients',),
  # Of the model these use features, logits and caches.
  ('zaya_jax.losses', 'zaya_jax.decode'),
  ('zaya_jax.decoding',),
  ('zaya_jax.model',),
  ('zaya_jax.optim', 'zaya_jax.context', 'zaya_jax.metrics'),
  ('zaya_jax.run_files', 'zaya_jax.partition', 'zaya_jax.votes'),
  ('zaya_jax.judgement',),
  ('zaya_jax.mesh', 'zaya_jax.flags', 'zaya_jax.flops'),
  ('zaya_jax.checkpoint', 'zaya_jax.stop', 'zaya_jax.programs'),
  ('zaya_jax.distributed',),
  ('zaya_jax.launcher', 'zaya_jax.aegis.rank'),
  (
    'zaya_jax.config',
    'zaya_jax.clock',
    'zaya_jax.aegis.beats',  # What training calls of its supervisor.
    'zaya_jax.aegis.fence',
    'zaya_jax.aegis.faults',
    'ops',
    'pipelines',
  ),
  ('zaya_jax.fields',),
)

# Arrows that go up, inside a function, and why.
UPWARD = {
  # Config.from_flagfile is a convenience for notebooks.
  ('zaya_jax.config', 'zaya_jax.flags'),
}

# All that these may import from outside the standard library.
ONLY = {
  'ops': {'jax', 'numpy'},
  'pipelines': {
    'absl',
    'array_record',
    'grain',
    'jinja2',
    'numpy',
    'pyarrow',
    'tokenizers',
    'zstandard',
  },
  'zaya_jax.aegis': set(),  # It outlives what jax does to a process.
  # `--help` must come before jax could be imported.
  'zaya_jax.config': set(),
  'zaya_jax.fields': set(),
  'zaya_jax.flags': {'absl'},
}

# Libraries with one home.
HOMES = {
  'array_record': {'pipelines'},
  'grain': {'pipelines'},
  'jinja2': {'pipelines', 'zaya_jax.report'},
  'lm_eval': {'zaya_jax.interop'},
  'orbax': {'zaya_jax.checkpoint'},
  'safetensors': {'zaya_jax.interop'},
  'tensorboardX': {'zaya_jax.metrics'},
  'tensorstore': {'zaya_jax.checkpoint'},
  'tokenizers': {'pipelines'},
  'torch': set(),
  'transformers': set(),
}


def violations(root: pathlib.Path) -> list[str]:
  """Lists the imports under `root` that break a rule, one sentence each."""
  found = []
  for top in ('ops', 'pipelines', 'zaya_jax'):
    for path in sorted((root / top).rglob('*.py')):
      module = _module_name(path.relative_to(root))
      for name in sorted(_imports(path)):
        if fault := _fault(module, name):
          found.append(f'{module} imports {name}: {fault}.')
  return found


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


def _fault(module: str, name: str) -> str | None:
  if name == '.':
    return 'imports are absolute'
  if _unit(module) is None:
    return f'{module} has no floor; give it one in tests/imports_test.py'
  if name.split('.')[0] in ('ops', 'pipelines', 'zaya_jax'):
    return _local_fault(_unit(module), name)
  return _library_fault(_unit(module), name.split('.')[0])


def _local_fault(unit: str, name: str) -> str | None:
  target = _unit(name)
  if target is None:
    return f'{name} has no floor'
  if target == unit or (unit, target) in UPWARD:
    return None
  if unit in ('ops', 'pipelines'):
    return f'{unit} stands alone'
  if _floor(target) <= _floor(unit):
    return f'{target} is not below {unit}'
  return None


def _library_fault(unit: str, library: str) -> str | None:
  if library in sys.stdlib_module_names:
    return None
  if unit in ONLY and library not in ONLY[unit]:
    return f'{unit} may import only {sorted(ONLY[unit])}'
  if library in HOMES and unit not in HOMES[library]:
    return f'the home of {library} is {sorted(HOMES[library])}'
  return None


def _unit(name: str) -> str | None:
  """The longest entry of FLOORS that covers `name`."""
  units = {unit for floor in FLOORS for unit in floor}
  parts = name.split('.')
  for size in range(len(parts), 0, -1):
    unit = '.'.join(parts[:size])
    # A new zaya_jax/x.py must not pass for the package's __init__.py.
    if unit in units and (unit != 'zaya_jax' or name == 'zaya_jax'):
      return unit
  return None


def _floor(unit: str) -> int:
  return next(i for i, floor in enumerate(FLOORS) if unit in floor)


def test_imports_only_go_down():
  assert not violations(ROOT), '\n'.join(violations(ROOT))


def test_every_folder_is_read():
  for top in ('ops', 'pipelines', 'zaya_jax'):
    assert list((ROOT / top).rglob('*.py'))


@pytest.mark.parametrize(
  'path, source, rule',
  [
    ('ops/a.py', 'from zaya_jax import config', 'ops stands alone'),
    ('ops/a.py', 'import flax', 'ops may import only'),
    ('pipelines/a.py', 'import ops', 'pipelines stands alone'),
    ('zaya_jax/config/a.py', 'import jax', 'may import only []'),
    ('zaya_jax/mesh.py', 'from zaya_jax import flops', 'is not below'),
    ('zaya_jax/optim/a.py', 'from zaya_jax.model import b', 'is not below'),
    ('zaya_jax/step.py', 'import zaya_jax.train', 'is not below'),
    ('zaya_jax/model/a.py', 'from zaya_jax.optim import b', None),
    ('zaya_jax/train.py', 'import orbax.checkpoint as ocp', 'the home of'),
    ('zaya_jax/train.py', 'def f():\n  import torch', 'the home of'),
    ('zaya_jax/model/a.py', 'from . import b', 'imports are absolute'),
    ('zaya_jax/novel.py', 'import jax', 'has no floor'),
    ('zaya_jax/train.py', 'from zaya_jax import novel', 'has no floor'),
  ],
)
def test_violation_is_caught(tmp_path, path, source, rule):
  file = tmp_path / path
  file.parent.mkdir(parents=True)
  file.write_text(source)
  found = violations(tmp_path)
  assert len(found) == (rule is not None)
  assert all(rule in sentence for sentence in found)
