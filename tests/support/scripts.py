# SPDX-License-Identifier: Apache-2.0
"""Files of Python that no package holds, as modules."""

import importlib.util
import pathlib
import types

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load(path: str) -> types.ModuleType:
  """Runs a file below the root of the project, as `import` would."""
  name = pathlib.Path(path).stem
  spec = importlib.util.spec_from_file_location(name, ROOT / path)
  assert spec is not None and spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module
