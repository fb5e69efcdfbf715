# SPDX-License-Identifier: Apache-2.0
"""Which Hugging Face tensor is which leaf of ours, and how the axes move.

One row per leaf, read in both directions: an import walks it from right to
left, an export from left to right. Shapes are not repeated here; they follow
from the leaf and its layout.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

LAYERS = 'layers/'  # Leaves below it are stacked over the layers.
EDA = 'layers/router/eda'  # The first layer has no such tensor.


@dataclasses.dataclass(frozen=True)
class Layout:
  """A pair of inverse rearrangements of one (unstacked) tensor."""

  read: Callable[[np.ndarray], np.ndarray]  # Theirs to ours.
  write: Callable[[np.ndarray], np.ndarray]  # Ours to theirs.


@dataclasses.dataclass(frozen=True)
class Row:
  """One leaf: our path, their name (of layer `{n}`), and the layout."""

  path: str
  name: str
  layout: Layout

  @property
  def stacked(self) -> bool:
    """Whether the leaf has a leading axis of layers."""
    return self.path.startswith(LAYERS)

  def layers(self, num_layers: int) -> list[int]:
    """The layers that have this tensor; [0] for one outside the layers."""
    if not self.stacked:
      return [0]
    return list(range(1 if self.path == EDA else 0, num_layers))


def export(
  rows: tuple[Row, ...], tree: dict[str, Any]
) -> Iterator[tuple[str, np.ndarray]]:
  """Yields (their name, array in their layout) for every leaf of `tree`."""
  leaves = flatten(tree)
  for row in rows:
    if row.path not in leaves:
      continue
    leaf = np.asarray(leaves[row.path])
    parts = leaf if row.stacked else leaf[None]
    for n in row.layers(len(parts)):
      yield row.name.format(n=n), row.layout.write(parts[n])


def flatten(tree: dict[str, Any]) -> dict[str, Any]:
  """{'layers/attn/q': leaf, ...} of a nested dict."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {'/'.join(key.key for key in path): leaf for path, leaf in leaves}


def nest(leaves: dict[str, Any]) -> dict[str, Any]:
  """Inverse of `flatten`."""
  tree = {}
  for path, leaf in leaves.items():
    *parents, last = path.split('/')
    node = tree
    for parent in parents:
      node = node.setdefault(parent, {})
    node[last] = leaf
  return tree


def _read_grouped(w: np.ndarray) -> np.ndarray:
  """[groups * out, in, taps] to [taps, groups, in, out]."""
  _, width, taps = w.shape
  return w.reshape(-1, width, width, taps).transpose(3, 0, 2, 1)


def _write_grouped(w: np.ndarray) -> np.ndarray:
  """[taps, groups, in, out] to [groups * out, in, taps]."""
  taps, groups, width, _ = w.shape
  return w.transpose(1, 3, 2, 0).reshape(groups * width, width, taps)


def _swap(w: np.ndarray) -> np.ndarray:
  """[..., out, in] to [..., in, out], and back."""
  return w.swapaxes(-1, -2)


_SAME = Layout(read=lambda w: w, write=lambda w: w)
_SWAP = Layout(read=_swap, write=_swap)
_DEPTHWISE = Layout(read=lambda w: w[:, 0].T, write=lambda w: w.T[:, None])
_GROUPED = Layout(read=_read_grouped, write=_write_grouped)

_LAYER = 'model.layers.{n}.'
_CCA = _LAYER + 'self_attn.qkv_proj.'
_OUT = _LAYER + 'self_attn.o_proj.'
_GATE = _LAYER + 'mlp.gate.'
_MLP = _GATE + 'router_mlp.'
_EXPERTS = _LAYER + 'mlp.experts.'
_MERGE = _LAYER + 'post_attention_residual_scale.'
_MERGE_MOE = _LAYER + 'post_mlp_residual_scale.'

PARAMS = tuple(
  Row(*row)
  for row in (
    ('embed', 'model.embed_tokens.weight', _SAME),
    ('input_scale', 'model.input_hidden_states_scale', _SAME),
    ('input_bias', 'model.input_hidden_states_bias', _SAME),
    ('final_norm', 'model.norm.weight', _SAME),
    ('head', 'lm_head.weight', _SAME),
    ('head_bias', 'lm_head.bias', _SAME),
    ('layers/attn_norm', _LAYER + 'input_layernorm.weight', _SAME),
    ('layers/moe_norm', _LAYER + 'post_attention_layernorm.weight', _SAME),
    ('layers/attn/q', _CCA + 'q_proj.weight', _SWAP),
    ('layers/attn/q_bias', _CCA + 'q_proj.bias', _SAME),
    ('layers/attn/k', _CCA + 'k_proj.weight', _SWAP),
    ('layers/attn/k_bias', _CCA + 'k_proj.bias', _SAME),
    ('layers/attn/v_current', _CCA + 'v_proj_current.weight', _SWAP),
    ('layers/attn/v_current_bias', _CCA + 'v_proj_current.bias', _SAME),
    ('layers/attn/v_delayed', _CCA + 'v_proj_delayed.weight', _SWAP),
    ('layers/attn/v_delayed_bias', _CCA + 'v_proj_delayed.bias', _SAME),
    ('layers/attn/out', _OUT + 'weight', _SWAP),
    ('layers/attn/out_bias', _OUT + 'bias', _SAME),
    (
      'layers/attn/conv_depthwise',
      _CCA + 'conv_qk_depthwise.weight',
      _DEPTHWISE,
    ),
    (
      'layers/attn/conv_depthwise_bias',
      _CCA + 'conv_qk_depthwise.bias',
      _SAME,
    ),
    ('layers/attn/conv_grouped', _CCA + 'conv_qk_grouped.weight', _GROUPED),
    ('layers/attn/conv_grouped_bias', _CCA + 'conv_qk_grouped.bias', _SAME),
    ('layers/attn/temperature', _LAYER + 'self_attn.qk_norm.temp', _SAME),
    ('layers/attn_merge/branch_scale', _MERGE + 'hidden_states_scale', _SAME),
    ('layers/attn_merge/branch_bias', _MERGE + 'hidden_states_bias', _SAME),
    ('layers/attn_merge/residual_scale', _MERGE + 'residual_scale', _SAME),
    ('layers/attn_merge/residual_bias', _MERGE + 'residual_bias', _SAME),
    (
      'layers/moe_merge/branch_scale',
      _MERGE_MOE + 'hidden_states_scale',
      _SAME,
    ),
    ('layers/moe_merge/branch_bias', _MERGE_MOE + 'hidden_states_bias', _SAME),
    ('layers/moe_merge/residual_scale', _MERGE_MOE + 'residual_scale', _SAME),
    ('layers/moe_merge/residual_bias', _MERGE_MOE + 'residual_bias', _SAME),
    ('layers/router/down', _GATE + 'down_proj.weight', _SWAP),
    ('layers/router/down_bias', _GATE + 'down_proj.bias', _SAME),
    (EDA, _GATE + 'router_states_scale', _SAME),
    ('layers/router/norm', _MLP + 'norm.weight', _SAME),
    ('layers/router/fc1', _MLP + 'fc1.weight', _SWAP),
    ('layers/router/fc1_bias', _MLP + 'fc1.bias', _SAME),
    ('layers/router/fc2', _MLP + 'fc2.weight', _SWAP),
    ('layers/router/fc2_bias', _MLP + 'fc2.bias', _SAME),
    ('layers/router/out', _MLP + 'out_proj.weight', _SWAP),
    ('layers/experts/gate_up', _EXPERTS + 'gate_up_proj', _SWAP),
    ('layers/experts/down', _EXPERTS + 'down_proj', _SWAP),
  )
)

BUFFERS = (
  Row('layers/router/balance_bias', _GATE + 'balancing_biases', _SAME),
)
