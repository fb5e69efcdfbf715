# SPDX-License-Identifier: Apache-2.0
"""Writes the goldens: tiny transformers models and what they answer.

    make parity ARGS=--version   # Once: makes the environment with PyTorch.
    .venv-parity/bin/python -m tests.golden.make_goldens

Each golden is a native Hugging Face folder with `answers.npz` beside the
weights: tokens, mask, logits, greedy tokens, loss, and some gradients by
name.
"""

import pathlib
import shutil

import numpy as np

from tests.parity import cases, peer

FOLDER = pathlib.Path(__file__).parent
GRADIENTS = (  # The ends of long paths through the model.
  'model.input_hidden_states_bias',
  'model.layers.0.self_attn.qkv_proj.conv_qk_depthwise.weight',
  'model.layers.0.self_attn.qkv_proj.conv_qk_grouped.weight',
  'model.layers.0.self_attn.qkv_proj.v_proj_delayed.weight',
  'model.layers.0.self_attn.qk_norm.temp',
  'model.layers.0.post_attention_residual_scale.residual_bias',
  'model.layers.0.mlp.gate.down_proj.weight',
  'model.layers.1.mlp.gate.router_states_scale',
  'model.layers.1.mlp.experts.gate_up_proj',
)

# Names, seeds and shapes; small enough to be kept in the repository.
_SMALL = {
  'vocab_size': 29,
  'hidden_size': 16,
  'num_hidden_layers': 2,
  'num_experts': 3,
  'moe_intermediate_size': 8,
  'router_hidden_size': 8,
}
GOLDENS = (
  cases.Case(name='plain', seed=1, keys=_SMALL),
  cases.Case(
    name='sliding_untied_biases',
    seed=2,
    keys=_SMALL
    | {
      'num_attention_heads': 6,
      'num_key_value_heads': 3,
      'cca_time1': 3,
      'num_hidden_layers': 3,
      'layer_types': ['hybrid', 'hybrid_sliding', 'hybrid'],
      'sliding_window': 4,
      'rope_parameters': cases.rope(1e4, 100.0),
      'attention_bias': True,
      'lm_head_bias': True,
      'tie_word_embeddings': False,
    },
  ),
)


def main() -> None:
  """Writes every golden anew."""
  for case in GOLDENS:
    folder = FOLDER / case.name
    shutil.rmtree(folder, ignore_errors=True)
    model = peer.build(case)
    peer.save(model, str(folder))
    tokens, mask = peer.batch(case)
    loss, gradients = peer.loss_and_gradients(model, tokens, mask)
    np.savez_compressed(
      folder / 'answers.npz',
      tokens=tokens,
      mask=mask,
      logits=peer.logits(model, tokens, mask),
      loss=np.float32(loss),
      greedy=peer.greedy(model, tokens, mask, steps=16),
      **{name: gradients[name] for name in GRADIENTS},
    )
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f'{folder}: {size:,} bytes')


if __name__ == '__main__':
  main()
