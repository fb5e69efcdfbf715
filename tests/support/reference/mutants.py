# SPDX-License-Identifier: Apache-2.0
"""Wrong models: what a comparison must catch, or it proves nothing.

Each patch takes pytest's monkeypatch and replaces one formula by a plausible
other one.
"""

import jax
import jax.numpy as jnp

from ops.cca import reference as cca_ops
from ops.router import reference as router_ops
from zaya_jax.model import layers


def pad_convolutions_separately(monkeypatch):
  joint, given = cca_ops.joint_kernel, []

  def joint_kernel(*parameters):
    given[:] = parameters
    return joint(*parameters)

  def convolve(z, *_):
    depthwise, depthwise_bias, grouped, grouped_bias = given
    batch, length, _ = z.shape
    u = _taps(z, depthwise, lambda x, w: x * w[None, None])
    u = u + depthwise_bias[None, None]
    u = u.reshape(batch, length, *grouped.shape[1:3])
    y = _taps(u, grouped, lambda x, w: jnp.einsum('BLGX,GXC->BLGC', x, w))
    return y.reshape(z.shape) + grouped_bias[None, None]

  monkeypatch.setattr(cca_ops, 'joint_kernel', joint_kernel)
  monkeypatch.setattr(cca_ops, 'convolve', convolve)


def softmax_without_the_skip_class(monkeypatch):
  def softmax(logits):
    probs = jax.nn.softmax(logits[..., :-1], axis=-1)
    return jnp.concatenate([probs, jnp.zeros_like(probs[..., :1])], axis=-1)

  monkeypatch.setattr(router_ops, 'softmax', softmax)


def weigh_by_the_biased_probability(monkeypatch):
  def choose(probs, bias):
    choice = jnp.argmax(probs + bias[None, None], axis=-1).astype(jnp.int32)
    return choice, router_ops.pick(probs + bias[None, None], choice)

  monkeypatch.setattr(router_ops, 'choose', choose)


def do_not_delay_values(monkeypatch):
  monkeypatch.setattr(cca_ops, 'delay', lambda v, *_: v)


def scale_the_residual_before_its_bias(monkeypatch):
  def affine(x, scale, bias):
    return x * scale[...][None, None] + bias[...][None, None]

  monkeypatch.setattr(layers, 'affine', affine)


def forget_the_router_of_the_layer_before(monkeypatch):
  monkeypatch.setattr(router_ops, 'mix', lambda own, *_: own)


ROUTER = (
  softmax_without_the_skip_class,
  weigh_by_the_biased_probability,
  forget_the_router_of_the_layer_before,
)
PATCHES = (
  pad_convolutions_separately,
  do_not_delay_values,
  scale_the_residual_before_its_bias,
  *ROUTER,
)

SETTINGS = {
  'rope_on_the_whole_head': {'rope_fraction': 1.0},
  'skip_passes_the_input': {'skip': 'identity'},
  'window_counts_only_earlier_keys': {'sliding_window': 5},
  'another_rope_base': {'rope_theta': 100.0},
  'norm_epsilon_of_other_models': {'norm_eps': 0.1},
}


def _taps(x, weights, apply):
  """Sum over taps of one causal convolution, padded by zeros on its own."""
  pad = len(weights) - 1
  widths = [(0, 0), (pad, 0)] + [(0, 0)] * (x.ndim - 2)
  padded = jnp.pad(x, widths)
  return sum(
    apply(padded[:, i : i + x.shape[1]], w) for i, w in enumerate(weights)
  )
