# SPDX-License-Identifier: Apache-2.0
"""Parts of a step by what the operations in `ops` were measured to take.

FLOPs and bytes are the least that an operation needs, as the cases in
`ops/*/cases.py` count them: so a part takes the measured seconds of a case
times its work over that of the case (`rates`). A part whose operation was not
measured has none here.
"""

from collections.abc import Callable

from zaya_jax import config as config_lib
from zaya_jax.model import flops as flops_lib
from zaya_jax.model import shapes
from zaya_jax.plan.cost import division, estimate, newton_schulz
from zaya_jax.plan.cost import rates as rates_lib

# Bytes of an element of the residual stream in a layer that are moved between
# operations: tokens into blocks and out of them, slices, sums. 0.111 ms for
# 65,536 tokens of 512 channels at 4.2 TB/s (dataflow_h200.json, "after"), with
# what the merge does for the experts in it.
_BETWEEN = 18
_CASTS = 10  # Bytes of each weight and pass: a copy, and stacks of gradients.
_SUMS = 10  # Bytes of each weight and part: float32 sums over parts.
_PRODUCTS = (
  'attn/q', 'attn/k', 'attn/v_current', 'attn/v_delayed', 'attn/out',
)  # fmt: skip
# Bytes of a parameter that an update moves in float32: parameter and state,
# there and back, the gradient, twice for its norm; Muon's also a matrix there
# and back in bfloat16.
_MUON, _ADAMW = 28, 32


class Parts:
  """Work of one device in a step.

  Args:
    config: of the run, with nothing left to decide.
    layout: of its step.
    rates: of the device.
  """

  def __init__(
    self,
    config: config_lib.Config,
    layout: division.Layout,
    rates: rates_lib.Rates,
  ):
    self._config, self._layout, self._rates = config, layout, rates
    self._tokens = layout.tokens * layout.parts
    self._calls = config.model.num_layers * layout.parts
    self._counted = flops_lib.per_token(config.model, layout.seq_len)
    self._leaves = division.leaves(config, layout)

  def find(self, name: str) -> estimate.Estimate | None:
    """A part of the passes; None: it was not measured."""
    parts: dict[str, Callable[[], estimate.Estimate | None]] = {
      'projections': self._projections,
      'convolutions': self._convolutions,
      'attention': self._attention,
      'router': self._router,
      'experts': self._experts,
      'head': self._head,
      'elementwise': self._elementwise,
    }
    return parts[name]()

  def newton_schulz(self) -> estimate.Estimate | None:
    """All iterations of the busiest device, in the form that the run takes."""
    found = []
    gram = self._config.optim.newton_schulz_gram == 'true'
    steps = self._config.optim.newton_schulz_steps
    for s in newton_schulz.stacks(self._config, self._layout, self._leaves):
      flops = s.each * newton_schulz.one(s.m, s.n, steps, symmetric=True)
      if gram and s.n >= 2 * s.m:
        flops = s.each * (6.0 * s.m**2 * s.n + 14.0 * s.m**3)
      moved = 4.0 * s.each * s.m * s.n
      found.append(self._rates.operation(
        'newton_schulz', flops, moved, calls=s.each / 16, which='forward'
      ))  # fmt: skip
    known = [each for each in found if each]
    return estimate.total(known) if known and len(known) == len(found) else None

  def update(self) -> estimate.Estimate | None:
    """Momentum, moments and parameters of what a device keeps."""
    if not self._is_fused:
      return None
    return self._rates.moved(sum(
      leaf.part_bytes / 4 * (_MUON if leaf.muon else _ADAMW)
      for leaf in self._leaves
      if not leaf.frozen
    ))  # fmt: skip

  @property
  def _is_fused(self) -> bool:
    """Whether kernels for what lies between products were measured."""
    return bool(self._rates.operation('residual_rms_norm', 1.0, 1.0))

  def _projections(self):
    """Three products for each weight, and the forward one again by remat."""
    if not self._rates.machine or not self._rates.machine.sections.get('gemm'):
      return None
    model, tokens = self._config.model, self._layout.tokens
    known, found = shapes.parameters(model), []
    for name in _PRODUCTS:
      k, n = known[f'layers/{name}'][1:]
      flops = 2.0 * self._tokens * k * n * model.num_layers * self._passes
      found.append(self._rates.product(flops, (tokens, n, k)))
    return estimate.total(found)

  def _convolutions(self):
    model = self._config.model
    tokens = self._tokens * model.num_layers
    both = model.num_heads + model.num_kv_heads
    wide = 2.0 * (both + model.num_kv_heads) * model.head_dim
    read, written = wide + 2.0 * model.head_dim, wide
    flops = self._counted.convolutions * self._tokens / 3
    return self._op(
      'cca', flops, tokens * (read + written), 3 * flops,
      tokens * (2 * read + 3 * written),
    )  # fmt: skip

  def _attention(self):
    """Two products forward, five back; a ring has no kernel, but blocks."""
    model = self._config.model
    products = self._counted.attention * self._tokens / 6
    heads = model.num_heads + model.num_kv_heads
    once = 4.0 * self._tokens * model.num_layers * model.head_dim * heads
    engine = ''
    if self._layout.sizes['context'] > 1:
      ring = self._config.mesh.context_mode == 'ring'
      engine = 'xla' if ring else 'triton'
    return self._op(
      'attention', 2 * products, once, 7 * products, 3 * once, engine
    )

  def _router(self):
    model, r = self._config.model, self._config.model.d_router
    tokens = self._tokens * model.num_layers
    flops = self._counted.router * self._tokens / 3
    moved = tokens * (2.0 * model.d_model + 8 * r)
    back = moved + tokens * (4.0 * model.d_model + 16 * r)
    return self._op('router', flops, moved, 3 * flops, back)

  def _experts(self):
    model = self._config.model
    flops = self._counted.experts * self._tokens / 3
    owners = self._layout.sizes['expert']
    tokens = 2.0 * self._tokens * model.d_model * model.num_layers
    each = 2.0 * 3 * model.num_experts / owners * model.d_model * model.d_expert
    value = 2 * tokens + each * self._calls
    back = value + 3 * tokens + 2 * each * self._calls
    return self._op('experts', flops, value, 3 * flops, back)

  def _head(self):
    model, chunk = self._config.model, self._layout.tokens
    flops = self._counted.head * self._tokens / 3
    calls = self._layout.parts
    matrices = 2.0 * (chunk + model.vocab_size) * model.d_model * calls
    return self._rates.operation(
      'cross_entropy', 3 * flops, 2 * matrices, calls=self._tokens / 8192
    )

  def _elementwise(self):
    """Two merges with norms a layer, and what lies between operations."""
    model = self._config.model
    elements = 1.0 * self._tokens * model.d_model * model.num_layers
    merges = self._op(
      'residual_rms_norm', 18 * elements, 24 * elements, 70 * elements,
      60 * elements, times=2,
    )  # fmt: skip
    if merges is None:
      return None
    weights = sum(
      leaf.seen for leaf in self._leaves if leaf.name.startswith('layers')
    )
    parts = self._layout.parts
    between = _BETWEEN * elements + _CASTS * weights * parts
    between += _SUMS * weights * parts * (parts > 1)
    return merges + self._rates.moved(between)

  @property
  def _passes(self) -> int:
    return 4 if self._config.model.remat == 'block' else 3

  def _op(
    self, name, forward, moved, both, moved_both, engine='', times=1
  ) -> estimate.Estimate | None:
    """An operation of each layer, forward and back, and again by remat."""
    calls = times * self._calls
    found = self._rates.operation(
      name, both, moved_both, calls=calls, engine=engine
    )
    if found is None or self._config.model.remat != 'block':
      return found
    again = self._rates.operation(
      name, forward, moved, calls=calls, which='forward', engine=engine
    )
    return found + (again or found * (1 / 3))
