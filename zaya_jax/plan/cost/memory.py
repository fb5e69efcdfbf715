# SPDX-License-Identifier: Apache-2.0
"""Bytes of one device, by kind.

What a run keeps is counted leaf by leaf, placed as the run places it; what a
step makes in passing is a formula of the engines in `ops`. No jax is needed.
"""

import dataclasses
import math

from zaya_jax import config as config_lib
from zaya_jax.model import shapes
from zaya_jax.parallel import placement
from zaya_jax.plan.cost import division, newton_schulz

_ROWS = 2048  # Of a block, in `context.blocks`.
_EXPERTS = 'layers/experts/'
_MAX_LOGITS = 3 * 2**27  # Of a chunk, in `ops.cross_entropy`.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
  """Bytes of one device."""

  parameters: float
  optimizer: float
  weights: float  # Gathered or cast, until the backward pass ends.
  gradients: float
  activations: float  # Kept for the backward pass.
  logits: float  # Of the chunk of tokens that the loss is at, and its head.
  temporary: float  # Of one layer backward or of Newton-Schulz, beyond that.

  @property
  def total(self) -> float:
    """All kinds together."""
    return sum(dataclasses.astuple(self))


def checkpoint_bytes(
  config: config_lib.Config, layout: division.Layout
) -> float:
  """Of a saved state; its counters, 300 bytes, are left out."""
  found = division.leaves(config, layout)
  held = sum(
    4 * leaf.size * (1 + leaf.states) for leaf in found if not leaf.frozen
  )
  return held + 3 * _balance_bytes(config.model)  # The bias and two moments.


def optimizer_bytes(
  config: config_lib.Config, layout: division.Layout
) -> tuple[float, float]:
  """Optimizer states that are divided among all, and those that are not.

  Returns:
    Bytes of one device: divided among all that hold the same parameter, and
    those of which some hold copies, for nothing divides them.
  """
  found = division.leaves(config, layout)
  held = lambda leaf: leaf.part_bytes * leaf.states
  parts = sum(held(leaf) for leaf in found if not leaf.copied)
  whole = sum(held(leaf) for leaf in found if leaf.copied)
  return parts, whole + 2 * _balance_bytes(config.model)


def _balance_bytes(model) -> int:
  """Of the balancing bias, and of each of its two moments."""
  return 4 * model.num_layers * model.num_classes


def cache_bytes(model: config_lib.ModelConfig, width: int) -> int:
  """Keys and values of one token in all layers, when decoding."""
  return 2 * width * model.num_layers * model.num_kv_heads * model.head_dim


def plan(
  config: config_lib.Config,
  layout: division.Layout,
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
  model, found = config.model, division.leaves(config, layout, width)
  frozen = division.reference(config, layout, width)
  kept = layer_activations(model, width) * layout.tokens
  saved = {
    'none': kept,
    'auto': kept,  # Nobody has decided.
    'cheap': dear_activations(model, width, layout.sizes['expert'])
    * layout.tokens,
    'block': 4 * (model.d_model + model.d_router) * layout.tokens,
  }[remat or model.remat]
  stacks = newton_schulz.stacks(config, layout, found)
  logits = _logits(config, layout, width)
  if config.lora.rank and (remat or model.remat) in ('none', 'auto'):
    saved += _sums(config, width)  # Of weights and adapters.
  held = model.num_layers * saved  # Not any more, when Newton-Schulz works.
  work = max(
    kept + _layer_work(config, layout, found, width),
    newton_schulz.workspace(stacks, width) - held,
  )
  temporary = max(0.0, work - logits)
  early, late = _gradients(
    found, layout, width, has_sinks(config, layout, remat)
  )
  return Memory(
    parameters=sum(leaf.part_bytes for leaf in [*found, *frozen]),
    optimizer=sum(optimizer_bytes(config, layout)),
    # Of what nothing goes back through, a layer gathers its own, but of parts.
    weights=sum(
      _weight(leaf, layout, width)
      for leaf in [*found, *(frozen if layout.parts > 1 else [])]
    ),
    # The last are made as activations go.
    gradients=early + max(0.0, late - held - logits - temporary),
    activations=held,
    logits=logits,
    temporary=temporary,
  )


def _sums(config, width) -> float:
  """Of the sums W + A @ B of one layer, in the compute type."""
  whole = shapes.parameters(config.model)
  names = [n for target in config.lora.targets for n in shapes.ADAPTED[target]]
  count = sum(math.prod(whole[f'layers/{name}'][1:]) for name in names)
  return width * count


def sent_width(leaf: division.Leaf, layout: division.Layout, width: int) -> int:
  """Bytes of an element of what ZeRO-1 gathers: `working.narrow`."""
  if leaf.frozen or placement.is_factor(leaf.name):
    return leaf.frozen or 4
  narrow = leaf.name.startswith(_EXPERTS)
  return width if narrow and layout.sizes['fsdp'] == 1 else 4


def has_sinks(
  config: config_lib.Config, layout: division.Layout, remat: str | None = None
) -> bool:
  """Whether gradients of experts are made in their sum: `working`."""
  blocks = (remat or config.model.remat) == 'block'
  loops = config.model.scan_layers != 'false'
  return layout.sizes['fsdp'] == 1 and not (blocks and loops)


def _weight(leaf, layout, width) -> float:
  """Of a parameter for the layers: gathered, or cast once for all parts."""
  if leaf.cut:
    return leaf.seen * sent_width(leaf, layout, width)
  is_cast = layout.parts > 1 and leaf.name.startswith(_EXPERTS)
  return leaf.seen * width if is_cast and width < 4 and not leaf.frozen else 0


def _gradients(found, layout, width, sinks) -> tuple[float, float]:
  """All the time of a backward pass, and what comes until its end.

  In one part this device's own are whole; but a layer that gathers its matrices
  scatters their gradients at once. Those of experts are in the compute type. In
  several parts there is a sum, float32, from the first one on; each part has
  its own besides, but of experts with sinks, whose stacks are there from its
  first layer on; and in the end a slice is left.
  """
  early = late = 0.0
  for leaf in found:
    own = leaf.seen * sent_width(leaf, layout, width)
    if leaf.frozen:
      continue
    if layout.parts > 1:
      is_expert = leaf.name.startswith(_EXPERTS)
      early += leaf.nbytes + own * (is_expert and not sinks)
      late += own * (not is_expert) + leaf.part_bytes * bool(leaf.cut)
    elif leaf.cut:
      of_layer = placement.is_of_layer(leaf.name, leaf.shape)
      early += leaf.part_bytes + leaf.nbytes * (not of_layer)
    else:
      early += own
  return early, late


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


def dear_activations(
  model: config_lib.ModelConfig, width: int, peers: int = 1
) -> float:
  """The same with --model.remat=cheap: what products and kernels made.

  The residual stream between layers and between their merges, and the router's
  products, are float32. In the compute type there are the normed streams,
  projections, queries, keys, what attention and the experts give, and of the
  experts also their hidden units and two derivatives of each; experts that are
  divided among peers have room for the tokens of all.
  """
  heads = (model.num_heads + model.num_kv_heads) * model.head_dim
  values = model.num_kv_heads * model.head_dim
  wide = 2 * model.d_model + 8 * model.d_router + model.num_classes
  return 4 * wide + width * (
    3 * model.d_model
    + peers * (model.d_model + 3 * model.d_expert)
    + model.d_qk
    + values
    + 2 * heads
  )


def chunk_tokens(num_tokens: int, vocab: int) -> int:
  """Tokens of which `ops.cross_entropy` holds the logits at a time."""
  most = min(max(1, _MAX_LOGITS // vocab), num_tokens)
  return max(c for c in range(1, most + 1) if num_tokens % c == 0)


def score_bytes(config: config_lib.Config, layout: division.Layout) -> float:
  """Of one block of attention's scores, float32.

  A quarter of the queries meets all keys (`ops.attention`); where rows are
  divided, blocks of queries meet blocks of keys (`context.blocks`).
  """
  rows, keys = layout.rows * config.model.num_heads, layout.seq_len
  queries = min(layout.columns, max(128, -(-layout.columns // 4)))
  if layout.sizes['context'] > 1:
    queries = keys = min(_ROWS, -(-layout.columns // 2))
  return 4.0 * rows * queries * keys


def _layer_work(config, layout, found, width) -> float:
  """Scores with their gradients, a layer's weights, gradients and slots."""
  per_layer = sum(
    _wide(config, leaf) * (layout.sizes['fsdp'] if 'fsdp' in leaf.held else 1)
    for leaf in found
    if leaf.name.startswith('layers/')
  )
  per_layer /= config.model.num_layers
  # What arrives from all peers, goes back, and the gradients of both.
  peers = layout.sizes['expert']
  slots = 4 * width * peers * layout.tokens * config.model.d_model
  sums = _sums(config, 4 + width) if config.lora.rank else 0
  return (
    sums
    + 3 * score_bytes(config, layout)
    + (4 + width) * per_layer
    + (slots if peers > 1 else 0)
  )


def _wide(config, leaf) -> float:
  """Elements that a layer of one device sees, widened if they are packed."""
  name, _, part = leaf.name.rpartition('/')
  if part not in placement.PACKED:
    return leaf.seen
  whole = math.prod(shapes.parameters(config.model)[name])
  return whole / leaf.shards if part == placement.PACKED[0] else 0.0


def _logits(config, layout, width) -> float:
  """Logits, float32, their gradient, and the head, in the compute type.

  With FSDP the head is also gathered, float32, and so is its gradient.
  """
  vocab = config.model.vocab_size
  chunk = chunk_tokens(layout.tokens, vocab)
  head = width + (8 if layout.sizes['fsdp'] > 1 else 0)
  return float(vocab) * (chunk * (4 + width) + config.model.d_model * head)
