# SPDX-License-Identifier: Apache-2.0
"""`zaya_jax.load` reads what transformers writes: fresh, sharded, rounded."""

import numpy as np
import torch

import zaya_jax
from tests.parity import cases, peer

CASE = cases.ALL[-1]


def test_freshly_initialized_model_is_loaded(tmp_path):
  torch.manual_seed(0)
  theirs = peer.fresh(CASE)
  peer.save(theirs, str(tmp_path))
  _assert_same_logits(theirs, zaya_jax.load(str(tmp_path)))


def test_sharded_bfloat16_folder_is_loaded(tmp_path):
  theirs = peer.build(CASE)
  theirs.bfloat16().save_pretrained(tmp_path, max_shard_size='20KB')
  assert len(list(tmp_path.glob('*.safetensors'))) > 2
  ours = zaya_jax.load(str(tmp_path))
  _assert_same_logits(theirs.float(), ours)


def _assert_same_logits(theirs, ours):
  tokens, mask = peer.batch(CASE)
  wanted = peer.logits(theirs, tokens, mask)[mask > 0]
  found = np.asarray(ours(tokens, attention_mask=mask))[mask > 0]
  assert np.abs(found - wanted).max() <= 1e-4 * np.ptp(wanted)
