# SPDX-License-Identifier: Apache-2.0
"""A model with packed matrices is that of the wide ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ops.experts import packed as packed_ops
from tests.support import close, few_bits, tiny
from zaya_jax import config as config_lib
from zaya_jax.hub.quantized import choice, rounding
from zaya_jax.model import lora, packed, shapes

MODEL = tiny.config(num_layers=3)
TOKENS = np.arange(14).reshape(2, 7)


def both(kind, targets=('experts', 'attention', 'embedding')):
  """Parameters with packed matrices, with these wide, and buffers."""
  params, buffers = tiny.arrays(MODEL)
  which, wides = choice.Choice(kind, targets), []

  def one(path, w):
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    if (its := which.of(name)) is None:
      return w
    rows = np.asarray(w)
    rows = rows.swapaxes(-1, -2) if name.startswith('layers') else rows
    values, scale = rounding.pack(rows, its)
    wide = few_bits.wide(values, scale).astype(np.float32)
    wides.append((name, wide))
    pair = {'values': jnp.asarray(values), 'scale': jnp.asarray(scale)}
    return packed_ops.Packed(**pair)

  few = jax.tree_util.tree_map_with_path(one, params)
  wide = jax.tree.map(lambda w: w, params)
  for name, rows in wides:
    *parents, last = name.split('/')
    node = wide
    for parent in parents:
      node = node[parent]
    node[last] = rows.swapaxes(-1, -2) if parents else rows
  assert len(wides) == 8
  return few, wide, buffers


@pytest.fixture(scope='module')
def model():
  return both('int4')


def test_logits_are_those_of_the_wide_matrices(model):
  few, wide, buffers = model
  found = tiny.logits(MODEL, few, buffers, TOKENS)
  expected = tiny.logits(MODEL, wide, buffers, TOKENS)
  close.assert_close(found, expected, close.FLOAT32)
  plain = tiny.logits(MODEL, tiny.arrays(MODEL)[0], buffers, TOKENS)
  assert close.error(found, plain) > 0.01  # And not those of the model before.


def test_whole_widens_all(model):
  few, wide, _ = model
  found = packed.whole(MODEL, few)
  jax.tree.map(np.testing.assert_array_equal, found, wide)
  assert packed.num_bytes(few) < packed.num_bytes(wide) / 2


def test_an_adapter_is_added_to_packed_matrices(model):
  few, wide, buffers = model
  settings = config_lib.LoraConfig(rank=2, alpha=3.0)
  adapter = lora.init(MODEL, settings, jax.random.key(1))
  adapter = jax.tree.map(lambda a: a + 0.1, adapter)
  found, expected = (
    tiny.logits(MODEL, lora.join(p, adapter, 1.5), buffers, TOKENS)
    for p in (few, wide)
  )
  close.assert_close(found, expected, close.FLOAT32)
  without = tiny.logits(MODEL, few, buffers, TOKENS)
  assert close.error(found, without) > 0.01


@pytest.mark.parametrize(
  'change',
  [
    lambda w: jnp.roll(w, 1, axis=0),  # The layer of another one.
    lambda w: jnp.roll(w, 1, axis=-2),  # The scale of another channel.
  ],
  ids=['layer', 'channel'],
)
@pytest.mark.parametrize('name', ['experts/down', 'attn/k'])
def test_scales_of_another_place_are_caught(model, name, change):
  few, wide, buffers = model
  part, last = name.split('/')
  w = few['layers'][part][last]
  moved = packed_ops.Packed(values=w.values, scale=change(w.scale))
  layers = few['layers'] | {part: few['layers'][part] | {last: moved}}
  found = tiny.logits(MODEL, few | {'layers': layers}, buffers, TOKENS)
  expected = tiny.logits(MODEL, wide, buffers, TOKENS)
  assert close.error(found, expected) > 1e-3


def test_names_of_what_is_packed_are_no_names_of_factors():
  assert shapes.PACKED not in shapes.FACTORS
