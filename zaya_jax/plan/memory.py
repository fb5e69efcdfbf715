# SPDX-License-Identifier: Apache-2.0
"""Bytes of one device, by kind.

What a run keeps is counted leaf by leaf from the shapes of its real state;
what a step makes in passing is a formula of the engines in `ops`.
"""

import dataclasses
import functools
import math

import jax

from ops.cross_entropy import chunked
from zaya_jax import config as config_lib
from zaya_jax import step
from zaya_jax.optim import labels
from zaya_jax.plan import layout as layout_lib
from zaya_jax.plan import newton_schulz

_EXPERTS = 'layers/experts/'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaf:
  """One array of the parameters."""

  name: str
  shape: tuple[int, ...]
  muon: bool

  @property
  def size(self) -> int:
    """Elements."""
    return math.prod(self.shape)

  @property
  def expert(self) -> bool:
    """Whether the axis `expert` of the mesh divides it."""
    return self.name.startswith(_EXPERTS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
  """Bytes of one device."""

  parameters: float
  optimizer: float
  gradients: float
  activations: float  # Kept for the backward pass.
  logits: float  # Of the chunk of tokens that the loss is at.
  temporary: float  # Of one layer backward, or of Newton-Schulz.

  @property
  def total(self) -> float:
    """All kinds, as if all were at their peak together."""
    return sum(dataclasses.astuple(self))


def leaves(config: config_lib.Config) -> list[Leaf]:
  """The parameters of a run."""
  params = _state(config).params
  groups = jax.tree.leaves(labels.label(params, optimizer=config.optim.name))
  found = jax.tree_util.tree_leaves_with_path(params)
  return [
    Leaf(name=labels.name(path), shape=leaf.shape, muon=group == 'muon')
    for (path, leaf), group in zip(found, groups, strict=True)
  ]


def checkpoint_bytes(config: config_lib.Config) -> int:
  """Of a saved state: parameters, optimizer, buffers and counters."""
  return sum(_nbytes(leaf) for leaf in jax.tree.leaves(_state(config)))


def optimizer_bytes(
  config: config_lib.Config, devices: int
) -> tuple[float, float]:
  """Optimizer states that are divided (ZeRO-1), and that are whole everywhere.

  A state is divided along an axis that the number of devices divides; there
  may be none.

  Returns:
    Bytes of one device: its parts, and the whole ones.
  """
  state, parts, whole = _state(config), 0.0, 0.0
  for leaf in jax.tree.leaves((state.opt_state, state.balance_state)):
    if any(n and n % devices == 0 for n in leaf.shape):
      parts += _nbytes(leaf) / devices
    else:
      whole += _nbytes(leaf)
  return parts, whole


def cache_bytes(model: config_lib.ModelConfig, width: int) -> int:
  """Keys and values of one token in all layers, when decoding."""
  return 2 * width * model.num_layers * model.num_kv_heads * model.head_dim


def plan(
  config: config_lib.Config,
  layout: layout_lib.Layout,
  width: int,
  remat: str | None = None,
) -> Memory:
  """The memory of a device.

  Args:
    config: of the run.
    layout: of the step.
    width: bytes of an element in matrix products.
    remat: instead of --model.remat.
  """
  model, found = config.model, leaves(config)
  held = sum(leaf.size / _shards(leaf, layout) for leaf in found)
  kept = layer_activations(model, width) * layout.tokens
  carried = 4 * (model.d_model + model.d_router) * layout.tokens
  saved = carried if (remat or config.model.remat) == 'block' else kept
  work = max(
    kept + _layer_work(config, layout, found, width),
    newton_schulz.workspace(_matrices(found), layout.devices, width),
  )
  return Memory(
    parameters=4 * held,
    optimizer=sum(optimizer_bytes(config, layout.devices)),
    # A second set holds the sum while the next part is computed.
    gradients=4 * held * (2 if layout.parts > 1 else 1),
    activations=model.num_layers * saved,
    logits=_logits(model.vocab_size, layout.tokens, width),
    temporary=work,
  )


def layer_activations(model: config_lib.ModelConfig, width: int) -> float:
  """Bytes of a token in one layer that the backward pass needs.

  The residual stream before, between and in both merges, the router's input
  and the weighted output are float32; norms, projections and sorted tokens are
  in the compute type. Scores of attention and hidden units of experts are made
  anew by their own backward passes.
  """
  kv = model.num_kv_heads * model.head_dim
  heads = model.num_heads * model.head_dim
  wide = 10 * model.d_model + 4 * model.d_qk
  wide += 8 * model.d_router + 2 * model.num_classes
  return 4 * wide + width * (
    5 * model.d_model + 2 * model.d_qk + 2 * kv + heads
  )


def score_bytes(config: config_lib.Config, layout: layout_lib.Layout) -> float:
  """Of the scores of one block of queries, float32: see `ops.attention`."""
  queries = min(layout.columns, max(128, -(-layout.columns // 4)))
  rows = layout.rows * config.model.num_heads
  return 4.0 * rows * queries * layout.seq_len


def matrices(config: config_lib.Config) -> dict[tuple[int, int], int]:
  """Muon's matrices: how many of each (rows, columns), rows <= columns."""
  return _matrices(leaves(config))


def _matrices(found: list[Leaf]) -> dict[tuple[int, int], int]:
  counts = {}
  for leaf in found:
    if leaf.muon:
      shape = tuple(sorted(leaf.shape[-2:]))
      number = math.prod(leaf.shape[:-2])
      counts[shape] = counts.get(shape, 0) + number
  return counts


@functools.lru_cache(maxsize=8)
def _state(config):
  return jax.eval_shape(step.make_init(config))


def _nbytes(leaf) -> int:
  return math.prod(leaf.shape) * leaf.dtype.itemsize


def _shards(leaf: Leaf, layout: layout_lib.Layout) -> int:
  """Devices among which a parameter and its gradient are divided."""
  fsdp, experts = layout.sizes['fsdp'], layout.sizes['expert']
  return fsdp * (experts if leaf.expert else 1)


def _layer_work(config, layout, found, width) -> float:
  """Scores with their gradients, and one layer's weights and gradients."""
  per_layer = sum(
    leaf.size / (layout.sizes['expert'] if leaf.expert else 1)
    for leaf in found
    if leaf.name.startswith('layers/')
  )
  per_layer /= config.model.num_layers
  return 3 * score_bytes(config, layout) + (4 + width) * per_layer


def _logits(vocab: int, tokens: int, width: int) -> float:
  """Logits and their gradient, float32, and that in the compute type."""
  chunk = chunked.chunk_tokens(tokens, vocab)
  return float(chunk) * vocab * (4 + 4 + width)
