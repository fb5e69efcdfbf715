# SPDX-License-Identifier: Apache-2.0
"""Which optimizer each parameter belongs to: one table, by path.

Dimensions cannot tell: a stack of experts has four, the embedding two. Every
path must be named here, so that a new parameter is a decision, not a default.
"""

import math
from collections.abc import Iterator
from typing import Any

from zaya_jax.parallel import placement

# Display name of each group.
MEANING = {
  'muon': 'Muon',
  'decay': 'AdamW with decay',
  'plain': 'AdamW without decay',
}

# Muon: matrices between hidden states. decay: AdamW with weight decay.
# plain: AdamW without. Paths are relative to `layers` where they start there.
_GROUPS = {
  'embed': 'decay',
  'head': 'decay',
  'head_bias': 'plain',
  'input_scale': 'plain',
  'input_bias': 'plain',
  'final_norm': 'plain',
  'layers/attn_norm': 'plain',
  'layers/attn/q': 'muon',
  'layers/attn/k': 'muon',
  'layers/attn/v_current': 'muon',
  'layers/attn/v_delayed': 'muon',
  'layers/attn/out': 'muon',
  'layers/attn/q_bias': 'plain',
  'layers/attn/k_bias': 'plain',
  'layers/attn/v_current_bias': 'plain',
  'layers/attn/v_delayed_bias': 'plain',
  'layers/attn/out_bias': 'plain',
  'layers/attn/conv_depthwise': 'plain',
  'layers/attn/conv_depthwise_bias': 'plain',
  'layers/attn/conv_grouped': 'decay',
  'layers/attn/conv_grouped_bias': 'plain',
  'layers/attn/temperature': 'plain',
  'layers/attn_merge/branch_scale': 'plain',
  'layers/attn_merge/branch_bias': 'plain',
  'layers/attn_merge/residual_scale': 'plain',
  'layers/attn_merge/residual_bias': 'plain',
  'layers/moe_norm': 'plain',
  'layers/router/down': 'muon',
  'layers/router/down_bias': 'plain',
  'layers/router/eda': 'plain',
  'layers/router/norm': 'plain',
  'layers/router/fc1': 'muon',
  'layers/router/fc1_bias': 'plain',
  'layers/router/fc2': 'muon',
  'layers/router/fc2_bias': 'plain',
  'layers/router/out': 'muon',
  'layers/experts/gate_up': 'muon',
  'layers/experts/down': 'muon',
  'layers/moe_merge/branch_scale': 'plain',
  'layers/moe_merge/branch_bias': 'plain',
  'layers/moe_merge/residual_scale': 'plain',
  'layers/moe_merge/residual_bias': 'plain',
}


def label(params: Any, *, optimizer: str) -> Any:
  """A tree like `params` of 'muon', 'decay' and 'plain'.

  Args:
    params: nested dict of arrays or shapes.
    optimizer: 'muon', or 'adamw' to give Muon's matrices to AdamW with decay.

  Raises:
    KeyError: if a parameter is in no group.
  """

  def walk(tree, path):
    if isinstance(tree, dict):
      return {key: walk(part, [*path, key]) for key, part in tree.items()}
    return of('/'.join(path), optimizer=optimizer)

  return walk(params, [])


def of(name: str, *, optimizer: str) -> str:
  """The group of the parameter at a path, as `label` has it."""
  # LoRA's own papers use AdamW. Muon would give both factors updates of full
  # rank and fixed size; of the product of two nobody knows what that does.
  # Decay leads to the base.
  group = 'decay' if placement.is_factor(name) else _GROUPS[name]
  return 'decay' if (group, optimizer) == ('muon', 'adamw') else group


def name(path: tuple[Any, ...]) -> str:
  """A tree path of jax, of dicts, as 'layers/attn/q'."""
  return '/'.join(entry.key for entry in path)


def table(
  params: Any, *, optimizer: str
) -> Iterator[tuple[str, str, str, int]]:
  """Yields name, group, shape and count of every parameter, for people."""
  for path, leaf in _leaves(params):
    shape = 'x'.join(map(str, leaf.shape))
    yield path, of(path, optimizer=optimizer), shape, math.prod(leaf.shape)


def _leaves(tree, prefix=''):
  for key, part in sorted(tree.items()):
    if isinstance(part, dict):
      yield from _leaves(part, f'{prefix}{key}/')
    else:
      yield f'{prefix}{key}', part


def summary(params: Any, *, optimizer: str) -> list[str]:
  """How many parameters each group has, one line a group."""
  rows = list(table(params, optimizer=optimizer))
  lines = []
  for group, meaning in MEANING.items():
    sizes = [size for _, kind, _, size in rows if kind == group]
    if sizes:
      lines.append(f'{meaning}: {sum(sizes):,} in {len(sizes)} arrays')
  return lines
