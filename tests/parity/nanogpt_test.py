# SPDX-License-Identifier: Apache-2.0
"""The peer that zaya_jax is timed against is a GPT-2 without biases."""

import pytest
import torch
import transformers
from torch.nn import functional

from benchmarks.peers import nanogpt

# Theirs, ours, and whether theirs is stored as [inputs, outputs].
NAMES = (
  ('ln_1', 'norm_attention', False),
  ('attn.c_attn', 'qkv', True),
  ('attn.c_proj', 'out', True),
  ('ln_2', 'norm_mlp', False),
  ('mlp.c_fc', 'up', True),
  ('mlp.c_proj', 'down', True),
)


def reference(model, activation):
  """The GPT-2 of transformers with the weights of `model` and zero biases."""
  gpt2 = transformers.GPT2LMHeadModel(
    transformers.GPT2Config(
      vocab_size=65,
      n_positions=nanogpt.BLOCK_SIZE,
      n_embd=nanogpt.D_MODEL,
      n_layer=nanogpt.NUM_LAYERS,
      n_head=nanogpt.NUM_HEADS,
      activation_function=activation,
      bos_token_id=None,
      eos_token_id=None,
    )
  ).eval()
  ours = model.state_dict()
  theirs = {name: 0 * value for name, value in gpt2.state_dict().items()}
  theirs['lm_head.weight'] = ours['embedding.weight']
  theirs['transformer.wte.weight'] = ours['embedding.weight']
  theirs['transformer.wpe.weight'] = ours['position.weight']
  theirs['transformer.ln_f.weight'] = ours['norm.weight']
  for i in range(nanogpt.NUM_LAYERS):
    for name, our_name, transposed in NAMES:
      weight = ours[f'blocks.{i}.{our_name}.weight']
      stored = weight.T if transposed else weight
      theirs[f'transformer.h.{i}.{name}.weight'] = stored
  gpt2.load_state_dict(theirs)
  return gpt2


def losses(activation):
  torch.manual_seed(0)
  model = nanogpt.Transformer(65)
  for weight in model.parameters():  # Off the start, where much is neutral.
    weight.data += 0.1 * torch.randn_like(weight)
  tokens = torch.randint(65, (3, nanogpt.BLOCK_SIZE + 1))
  inputs, targets = tokens[:, :-1], tokens[:, 1:]
  theirs = reference(model, activation)(inputs).logits
  expected = functional.cross_entropy(theirs.flatten(0, 1), targets.flatten())
  return model(inputs, targets).item(), expected.item()


def test_loss_equals_gpt2():
  ours, theirs = losses('gelu')
  assert ours == pytest.approx(theirs, rel=1e-5)  # Float32, sums of 128.


def test_another_activation_is_seen():
  ours, theirs = losses('relu')
  assert ours != pytest.approx(theirs, rel=1e-3)


def test_parameters_are_those_of_the_recipe():
  sizes = [weight.numel() for weight in nanogpt.Transformer(65).parameters()]
  positions = nanogpt.BLOCK_SIZE * nanogpt.D_MODEL
  # nanoGPT prints 0.80M for this recipe, positions left out.
  assert sum(sizes) - positions == 795_904
