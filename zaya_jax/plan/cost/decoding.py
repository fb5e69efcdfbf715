# SPDX-License-Identifier: Apache-2.0
"""Seconds of a token when a text is written on one device.

A token reads the weights that it uses and the cache of its context, and each
layer is a chain of short kernels, which takes its time whatever its width.
"""

from zaya_jax import config as config_lib
from zaya_jax.model import flops as flops_lib
from zaya_jax.plan.cost import estimate, memory
from zaya_jax.plan.cost import rates as rates_lib

# Seconds of a layer beyond its bytes: a layer of 38 MB took 55 us on an H200,
# of which reading is 9 (docs/decoding.md).
_LAYER_S = 46e-6
# By which two contexts of that measurement differ from this formula.
_ERROR = 0.1


def token(
  model: config_lib.ModelConfig, rates: rates_lib.Rates, context: int
) -> estimate.Estimate:
  """One token after `context` tokens, one text at a time."""
  width = rates.chip.width
  count = flops_lib.parameters(model)
  weights = width * (count.active + model.vocab_size * model.d_model)
  cache = memory.cache_bytes(model, width) * context
  layers = _LAYER_S * model.num_layers
  read = rates.moved(weights + cache)
  whole = estimate.Estimate(
    seconds=read.seconds + layers,
    low=read.low + layers,
    high=read.high + layers,
    source=read.source,
  )
  return whole.wider(_ERROR)
