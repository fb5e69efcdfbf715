# SPDX-License-Identifier: Apache-2.0
"""Which Hugging Face tensor is which leaf of ours, and how the axes move.

One row per leaf, read in both directions, with its name in each of the two
public layouts: 'native' (of transformers, a layer is attention and experts) and
'legacy' (of the first release: sub-layer 2n is the attention and 2n+1 are the
experts of layer n, an expert is a tensor of its own, and a residual merge lies
at the start of the sub-layer after it). Shapes are not repeated here; they
follow from the leaf and its arrangement.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Literal

import jax
import numpy as np

Layout = Literal['native', 'legacy']

LAYERS = 'layers/'  # Leaves below it are stacked over the layers.
EDA = 'layers/router/eda'  # The first layer has no such tensor.
HEAD, EMBED = 'lm_head.weight', 'model.embed_tokens.weight'  # In both layouts.


@dataclasses.dataclass(frozen=True)
class Axes:
  """A pair of inverse rearrangements of one (unstacked) tensor."""

  read: Callable[[np.ndarray], np.ndarray]  # Theirs to ours.
  write: Callable[[np.ndarray], np.ndarray]  # Ours to theirs.


@dataclasses.dataclass(frozen=True)
class Row:
  """One leaf: our path, how the axes move, and the name in each layout.

  In names `{n}` is the layer; in legacy ones `{a}`, `{m}` and `{next}` are the
  sub-layers of its attention, of its experts and after it, `{e}` the expert.
  """

  path: str
  axes: Axes
  native: str
  legacy: str

  @property
  def stacked(self) -> bool:
    """Whether the leaf has a leading axis of layers."""
    return self.path.startswith(LAYERS)

  def tensors(
    self, layout: Layout, shape: tuple[int, ...]
  ) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The tensors that make up the leaf.

    Args:
      layout: whose names.
      shape: of the leaf.

    Yields:
      (name, index): the tensor is `axes.write(leaf[index])`, and `leaf[index]`
      is `axes.read(tensor)`; the index is (), (layer,) or (layer, expert).
    """
    name = getattr(self, layout)
    if not self.stacked:
      yield name, ()
      return
    for n in range(1 if self.path == EDA else 0, shape[0]):
      end = n + 1 == shape[0]  # The last merge has no sub-layer after it.
      after = '' if end else f'layers.{2 * n + 2}.'
      known = {'n': n, 'a': 2 * n, 'm': 2 * n + 1, 'next': after}
      if '{e}' not in name:
        yield name.format(**known), (n,)
        continue
      for e in range(shape[1]):
        yield name.format(**known, e=e), (n, e)

  def shape_of(
    self, index: tuple[int, ...], shape: tuple[int, ...]
  ) -> tuple[int, ...]:
    """The shape of the tensor at `index` of a leaf of `shape`."""
    part = np.broadcast_to(False, shape[len(index) :])
    return self.axes.write(part).shape


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


_SAME = Axes(read=lambda w: w, write=lambda w: w)
_SWAP = Axes(read=_swap, write=_swap)
_DEPTHWISE = Axes(read=lambda w: w[:, 0].T, write=lambda w: w.T[:, None])
_GROUPED = Axes(read=_read_grouped, write=_write_grouped)


def _linear(
  leaf: str, native: str, legacy: str, axes: Axes = _SWAP
) -> tuple[tuple[str, str, str, Axes], ...]:
  """The rows of a matrix and of its bias."""
  return (
    (leaf, f'{native}.weight', f'{legacy}.weight', axes),
    (f'{leaf}_bias', f'{native}.bias', f'{legacy}.bias', _SAME),
  )


_N, _A, _M = 'model.layers.{n}.', 'model.layers.{a}.', 'model.layers.{m}.'
_MERGE = (
  ('branch_scale', 'hidden_states_scale', 'hidden_states_scale', _SAME),
  ('branch_bias', 'hidden_states_bias', 'hidden_states_bias', _SAME),
  ('residual_scale', 'residual_scale', 'residual_scale', _SAME),
  ('residual_bias', 'residual_bias', 'residual_bias', _SAME),
)
_FIRST = 'model.layers.0.res_scale.hidden_states_'  # It has no residual yet.

# (our prefix, native prefix, legacy prefix), then (leaf, native, legacy, axes).
_GROUPS = (
  (
    ('', '', ''),
    (
      ('embed', EMBED, EMBED, _SAME),
      (
        'input_scale',
        'model.input_hidden_states_scale',
        _FIRST + 'scale',
        _SAME,
      ),
      ('input_bias', 'model.input_hidden_states_bias', _FIRST + 'bias', _SAME),
      ('final_norm', 'model.norm.weight', 'model.final_norm.weight', _SAME),
      ('head', HEAD, HEAD, _SAME),
      ('head_bias', 'lm_head.bias', 'lm_head.bias', _SAME),
    ),
  ),
  (
    ('layers/', _N, 'model.layers.'),
    (
      ('attn_norm', 'input_layernorm.weight', '{a}.input_norm.weight', _SAME),
      (
        'moe_norm',
        'post_attention_layernorm.weight',
        '{m}.input_norm.weight',
        _SAME,
      ),
    ),
  ),
  (
    ('layers/attn/', _N + 'self_attn.qkv_proj.', _A + 'self_attn.qkv.'),
    (
      *_linear('q', 'q_proj', 'linear_q'),
      *_linear('k', 'k_proj', 'linear_k'),
      *_linear('v_current', 'v_proj_current', 'val_proj1'),
      *_linear('v_delayed', 'v_proj_delayed', 'val_proj2'),
      *_linear('conv_depthwise', 'conv_qk_depthwise', 'conv_qk.0', _DEPTHWISE),
      *_linear('conv_grouped', 'conv_qk_grouped', 'conv_qk.1', _GROUPED),
    ),
  ),
  (
    ('layers/attn/', _N + 'self_attn.', _A + 'self_attn.'),
    (
      ('temperature', 'qk_norm.temp', 'qkv.temp', _SAME),
      *_linear('out', 'o_proj', 'o_proj'),
    ),
  ),
  (
    (
      'layers/attn_merge/',
      _N + 'post_attention_residual_scale.',
      _M + 'res_scale.',
    ),
    _MERGE,
  ),
  (
    (
      'layers/moe_merge/',
      _N + 'post_mlp_residual_scale.',
      'model.{next}res_scale.',
    ),
    _MERGE,
  ),
  (
    ('layers/router/', _N + 'mlp.gate.', _M + 'zaya_block.router.'),
    (
      *_linear('down', 'down_proj', 'down_proj'),
      ('eda', 'router_states_scale', 'router_states_scale', _SAME),
      ('norm', 'router_mlp.norm.weight', 'rmsnorm_eda.weight', _SAME),
      *_linear('fc1', 'router_mlp.fc1', 'router_mlp.0'),
      *_linear('fc2', 'router_mlp.fc2', 'router_mlp.2'),
      ('out', 'router_mlp.out_proj.weight', 'router_mlp.4.weight', _SWAP),
      ('balance_bias', 'balancing_biases', 'balancing_biases', _SAME),
    ),
  ),
  (
    (
      'layers/experts/',
      _N + 'mlp.experts.',
      _M + 'zaya_block.experts.local_experts.{e}.',
    ),
    (
      ('gate_up', 'gate_up_proj', 'linear_fc1.weight', _SWAP),
      ('down', 'down_proj', 'linear_fc2.weight', _SWAP),
    ),
  ),
)

_ROWS = tuple(
  Row(ours + leaf, axes, native + a, legacy + b)
  for (ours, native, legacy), leaves in _GROUPS
  for leaf, a, b, axes in leaves
)
PARAMS = tuple(row for row in _ROWS if not row.path.endswith('balance_bias'))
BUFFERS = tuple(row for row in _ROWS if row.path.endswith('balance_bias'))
