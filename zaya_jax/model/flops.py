# SPDX-License-Identifier: Apache-2.0
"""Parameters and training FLOPs from the shape of a model alone.

One multiply-add is two FLOPs, the backward pass costs twice the forward pass,
and what is recomputed is not counted: the "model FLOPs" of PaLM (Chowdhery et
al. 2022, appendix B). Norms, softmax and other elementwise work are left out.
"""

import dataclasses
import math

from zaya_jax import config as config_lib
from zaya_jax.model import shapes

# Dense bfloat16 peak in TFLOP/s of what JAX counts as one device, by a part
# of `device_kind`; the first match counts. AMD: compute units x FLOP per clock
# x peak clock, as in the data sheets (MI300X: 304 x 2048 x 2.1 GHz); one
# MI250(X) card is two devices. NVIDIA: data sheets, half of the figure "with
# sparsity"; H100 and H200 without a suffix are the SXM modules.
_PEAK_TFLOPS = (
  ('MI355X', 2516.6),
  ('MI350X', 2306.9),
  ('MI325X', 1307.4),
  ('MI300X', 1307.4),
  ('MI300A', 980.6),
  ('MI250X', 191.5),
  ('MI250', 181.0),
  ('MI210', 181.0),
  ('GB200', 2500.0),
  ('B200', 2250.0),
  ('H200 NVL', 835.5),
  ('H200', 989.4),
  ('GH200', 989.4),
  ('H100 NVL', 835.5),
  ('H100 PCIe', 756.0),
  ('H100', 989.4),
  ('A100', 312.0),
  ('L40S', 362.0),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parameters:
  """How many parameters a model has; the balancing bias is a buffer."""

  total: int  # A tied head counts once.
  active: int  # Used by one token, without embedding and head.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flops:
  """Training FLOPs of one token, forward and backward, by term."""

  projections: float
  convolutions: float
  attention: float
  router: float
  experts: float
  head: float

  @property
  def total(self) -> float:
    """The sum of all terms."""
    return sum(dataclasses.astuple(self))


def parameters(model: config_lib.ModelConfig) -> Parameters:
  """Counts the parameters of `model`."""
  sizes = {k: math.prod(v) for k, v in shapes.parameters(model).items()}
  # Layer 0 has no state to mix in: of its vector for that, nothing is used.
  total = sum(sizes.values())
  if model.router == 'mlp':
    total -= model.d_router
  vocabulary = sum(
    n for k, n in sizes.items() if k in ('embed', 'head', 'head_bias')
  )
  experts = sum(n for k, n in sizes.items() if k.startswith('layers/experts/'))
  idle = experts - experts // model.num_experts  # All but one of each layer.
  return Parameters(total=total, active=total - vocabulary - idle)


def per_token(model: config_lib.ModelConfig, seq_len: int) -> Flops:
  """Training FLOPs of one token in windows of `seq_len` tokens.

  Attention counts the keys that a query sees, causality and sliding windows
  included. A token that takes the skip class counts as if it had an expert.
  """
  d, r = model.d_model, model.d_router
  width = model.num_heads * model.head_dim
  kv_width = model.num_kv_heads * model.head_dim
  taps = model.conv_depthwise + model.head_dim * model.conv_grouped
  taps *= model.attention == 'cca'
  router = d * r + 2 * r * r + r * model.num_classes
  if model.router == 'linear':
    router = d * model.num_classes
  sliding = len(model.sliding_layers)
  keys = (model.num_layers - sliding) * _mean_keys(seq_len, seq_len)
  keys += sliding * _mean_keys(seq_len, model.sliding_window)
  forward = 2  # FLOPs of a multiply-add.
  both = 3 * forward
  layers = both * model.num_layers
  return Flops(
    projections=layers * d * (2 * width + 2 * kv_width),
    convolutions=layers * model.d_qk * taps,
    attention=both * 2 * width * keys,  # Scores, then the sum of values.
    router=layers * router,
    experts=layers * 3 * d * model.d_expert,
    head=both * d * model.vocab_size,
  )


def peak_tflops(device_kind: str) -> float | None:
  """Dense bfloat16 peak of one device in TFLOP/s; None where unknown."""
  kind = device_kind.upper()
  for name, peak in _PEAK_TFLOPS:
    if name.upper() in kind:
      return peak
  return None


def _mean_keys(seq_len: int, window: int) -> float:
  """Keys that a query sees, on average over a window of the data."""
  window = min(window, seq_len)
  return (window * (window + 1) / 2 + (seq_len - window) * window) / seq_len
