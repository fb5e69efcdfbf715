# SPDX-License-Identifier: Apache-2.0
"""Cross-entropy for Hopper GPUs: interpreted where jax can, else lowered."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ops
from ops import dispatch
from ops.cross_entropy import hopper, reference
from ops.cross_entropy.hopper import exponentials as cross_entropy
from tests.support import close, gpus
from tests.support.ops import interpreter, plain_products
from tests.support.ops.cross_entropy_inputs import value_and_gradients


@pytest.fixture
def interpreted(monkeypatch):
  """Kernels run in Python: threads, barriers, copies and all, without races."""
  with interpreter.products(monkeypatch):
    yield


@pytest.mark.parametrize('scale', [1, 100])
def test_chunks_for_hopper_begin_anew_where_a_loss_is_large(
  plain, scale, monkeypatch
):
  rng = np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.bfloat16)
  x, head = scale * draw(40, 64), draw(256, 64)
  target = jnp.asarray(rng.integers(0, 256, 40), jnp.int32)
  weight = jnp.asarray(rng.random(40), jnp.float32).at[3].set(0)
  given = (x, head, None, target, weight)
  expected = value_and_gradients(reference.linear_cross_entropy, *given)
  with dispatch.use(cross_entropy='hopper'):
    found = value_and_gradients(ops.linear_cross_entropy, *given)
  close.assert_close(found, expected, close.BFLOAT16)
  # Were it not for that, losses beyond 60 nats would come out too small.
  monkeypatch.setattr(hopper, '_FAR', np.inf)
  with dispatch.use(cross_entropy='hopper'):
    cut, _ = value_and_gradients(ops.linear_cross_entropy, *given)
  assert (cut < 0.9 * expected[0]) == (scale > 1)


def _chunk(rng):
  x = jnp.asarray(rng.standard_normal((512, 128)) / 8, jnp.bfloat16)
  head = jnp.asarray(rng.standard_normal((320, 128)), jnp.bfloat16)
  shift = jnp.asarray(rng.standard_normal(512), jnp.float32)
  return x, head, shift.at[5].set(-100)  # Whose logits are too far from it.


@interpreter.needs_transposes
@pytest.mark.parametrize('save', [False, True])
def test_exponentials_interpreted(interpreted, save):
  x, head, shift = _chunk(np.random.default_rng(0))
  e, totals = cross_entropy.exponentials(x, head, shift, save=save)
  wanted, wanted_totals = plain_products.exponentials(x, head, shift, save=save)
  if save:
    np.testing.assert_allclose(*_float32(e, wanted), rtol=0.01)
  np.testing.assert_allclose(totals, wanted_totals, rtol=1e-5)
  head = jnp.pad(head, [(0, 64), (0, 0)])
  _, more = plain_products.exponentials(x, head, shift, save=False)
  assert (np.abs(totals - more) > 1e-5 * more)[np.arange(512) != 5].all()


def test_exponentials_lower():
  inputs = _chunk(np.random.default_rng(0))
  run = jax.jit(lambda *args: cross_entropy.exponentials(*args, save=True))
  lowered = gpus.lower(run.trace(*inputs), 'cuda')
  assert 'mosaic_gpu' in lowered.as_text()


def _float32(*arrays):
  return [np.asarray(a, np.float32) for a in arrays]
