# SPDX-License-Identifier: Apache-2.0
"""Multi-head latent attention against float64 NumPy, and in the trainer."""

import dataclasses
import json
import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from benchmarks import ablations_variants, record
from benchmarks.peers import mla
from tests.support import tiny
from zaya_jax.model import cca, layers

CONFIG = tiny.config(attention='gqa', head_dim=4, num_heads=4, num_kv_heads=2)


def module(seed=0):
  made, rng = mla.MLA(CONFIG, nnx.Rngs(0)), np.random.default_rng(seed)
  for name in ('q', 'k', 'v_current', 'out', 'temperature'):
    weight = getattr(made, name)
    weight[...] = jnp.asarray(0.5 * rng.normal(size=weight.shape), jnp.float32)
  return made


def given(length=7):
  h_BLD = np.random.default_rng(1).normal(size=(2, length, CONFIG.d_model))
  positions = np.tile(np.arange(length), (2, 1))
  rope = layers.rope_table(jnp.asarray(positions), CONFIG.d_rope, 1e4)
  context = cca.Context(
    mask=None, segments=None, attend_segments=None, rope=(rope, rope)
  )
  return jnp.asarray(h_BLD, jnp.float32), context


def specified(made, h_LD):
  """One sequence, head by head and token by token."""
  w = {
    name: np.float64(getattr(made, name)[...])
    for name in ('q', 'k', 'v_current', 'out', 'temperature')
  }
  (_, c, h, r), eps = mla.widths(CONFIG), CONFIG.norm_eps
  down_LX = h_LD @ w['k']
  shared_LR, latent_LM = down_LX[:, :r], down_LX[:, r:]
  latent_LM = latent_LM / np.sqrt((latent_LM**2).mean(-1, keepdims=True) + eps)
  heads = []
  for i in range(h):
    up_LX = (
      latent_LM @ w['v_current'][:, i * (2 * c - r) : (i + 1) * (2 * c - r)]
    )
    k_LC = np.concatenate([shared_LR, up_LX[:, : c - r]], -1)
    k_LC = turned(unit(k_LC) * w['temperature'][i], r)
    q_LC = turned(unit(h_LD @ w['q'][:, i * c : (i + 1) * c]), r)
    out_LC = []
    for t in range(len(h_LD)):
      p = np.exp(k_LC[: t + 1] @ q_LC[t] / math.sqrt(c))
      out_LC.append(p @ up_LX[: t + 1, c - r :] / p.sum())
    heads.append(np.array(out_LC))
  return np.concatenate(heads, -1) @ w['out']


def unit(x_LC):
  return x_LC / np.linalg.norm(x_LC, axis=-1, keepdims=True) * 2  # sqrt(C)


def turned(x_LC, r):
  """Channel i with channel i + R / 2, as one complex number."""
  z = x_LC[:, : r // 2] + 1j * x_LC[:, r // 2 : r]
  speed = 1e4 ** (-np.arange(r // 2) / (r // 2))
  z = z * np.exp(1j * np.arange(len(x_LC))[:, None] * speed)
  return np.concatenate([z.real, z.imag, x_LC[:, r:]], -1)


def test_it_is_the_specification():
  h_BLD, context = given()
  made = module()
  found = jax.jit(lambda h: made(h, context, None))(h_BLD)
  for row, h_LD in zip(found, np.float64(h_BLD), strict=True):
    np.testing.assert_allclose(row, specified(made, h_LD), rtol=2e-4, atol=2e-5)


def test_a_key_of_another_head_is_noticed():
  h_BLD, context = given()
  made = module()
  found = jax.jit(lambda h: made(h, context, None))(h_BLD)
  made.temperature[...] = jnp.roll(made.temperature[...], 1)
  expected = specified(made, np.float64(h_BLD[0]))
  assert np.abs(found[0] - expected).max() > 0.01


def test_it_keeps_what_heads_of_cca_keep():
  kept = mla.latent(CONFIG) + CONFIG.d_rope
  assert kept == 2 * CONFIG.num_kv_heads * CONFIG.head_dim
  assert module().k.shape == (CONFIG.d_model, kept)


def test_ablations_have_it_where_heads_fill_the_width():
  model = dataclasses.replace(CONFIG, d_model=16)
  assert ablations_variants.flags('mla 4x', model) == [
    '--model.attention=gqa', '--model.num_heads=4', '--model.num_kv_heads=1'
  ]  # fmt: skip
  assert ablations_variants.module('mla 4x') == 'benchmarks.peers.mla'
  assert ablations_variants.module('mha') == 'zaya_jax.main'


@pytest.mark.long
def test_trainer_learns_with_it(tmp_path):
  flags = [*tiny.FLAGS, '--model.attention=gqa', '--mesh.replica=1']
  flags += ['--data.input=docs', '--optim.lr=1e-2', f'--run_dir={tmp_path}/run']
  flags += ['--num_steps=20', '--data.batch_size=4', '--eval.batches=2']
  flags += ['--log.sample_every=20']  # It has no text to show.
  done = subprocess.run(
    [sys.executable, '-m', 'benchmarks.peers.mla', *flags],
    cwd=record.ROOT, capture_output=True, text=True, check=False,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  lines = (tmp_path / 'run' / 'metrics.jsonl').read_text().splitlines()
  losses = [json.loads(line).get('train/loss') for line in lines]
  losses = [loss for loss in losses if loss]
  assert losses[-1] < losses[0] - 1
