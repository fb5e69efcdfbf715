# SPDX-License-Identifier: Apache-2.0
"""A rule of rules.toml: where a value comes from, and what it must be."""

import dataclasses
import pathlib
import tomllib
from typing import Any

_FILE = pathlib.Path(__file__).parent / 'rules.toml'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
  """What makes a node fit, of one thing.

  Attributes:
    name: in the table.
    on: nodes that it is for: any, gpu, nvidia, rocm or rdma.
    judge: name of a function of `judge`.
    advice: what to do about a fault.
    command: a program and its words, `{run_dir}` among them.
    files: a pattern of paths.
    fact: name of what `node.Node.fact` knows; of the three one is given.
    of: name of a file beside each, whose number values are divided by.
    parser: name of a function of `values`.
    field: which of the values that the parser finds.
    limit: a number, words, or the name of a number that a flag says.
    value: what is counted.
    kind: a path from each file's folder to what its like has in common.
    unless: the flag that, where it is set, makes the rule needless.
    unit: of values and limit.
    scale: what values are divided by, for that unit.
    weight: 'fault' or 'warning', which leaves a node fit.
  """

  name: str
  on: str
  judge: str
  advice: str
  command: str = ''
  files: str = ''
  fact: str = ''
  of: str = ''
  parser: str = ''
  field: str = ''
  limit: float | str | tuple[str, ...] = 0
  value: str = ''
  kind: str = ''
  unless: str = ''
  unit: str = ''
  scale: float = 1
  weight: str = 'fault'

  @property
  def source(self) -> str:
    """Where the value comes from, in words."""
    return self.command or self.files or self.fact


def read(path: pathlib.Path = _FILE) -> tuple[Rule, ...]:
  """The rules of a file, in its order."""
  tables = tomllib.loads(path.read_text(encoding='utf-8'))['rule']
  as_tuple = lambda x: tuple(x) if isinstance(x, list) else x
  found = []
  for table in tables:
    words: dict[str, Any] = {k: as_tuple(v) for k, v in table.items()}
    found.append(Rule(**words))
  return tuple(found)
