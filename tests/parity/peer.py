# SPDX-License-Identifier: Apache-2.0
"""The other side: transformers in float32, with every weight random.

At its neutral start (scales 1, biases 0, temperatures 0) a wrong formula can
give right numbers, so nothing is left there.
"""

import contextlib
import io

import numpy as np
import torch
import transformers

from tests.parity import cases

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def fresh(case: cases.Case) -> transformers.ZayaForCausalLM:
  """The model of `case` as transformers initializes it."""
  config = transformers.ZayaConfig(**case.hf_config)
  config._attn_implementation = 'eager'
  config._experts_implementation = 'eager'  # The others need even widths.
  return transformers.ZayaForCausalLM(config).eval()


def build(case: cases.Case) -> transformers.ZayaForCausalLM:
  """The model of `case` with every parameter and buffer random."""
  model = fresh(case)
  draw = torch.Generator().manual_seed(case.seed)
  with torch.no_grad():
    for name, weight in model.named_parameters():
      weight.copy_(_random(name, weight, draw))
    for name, buffer in model.named_buffers():
      if name.endswith('balancing_biases'):
        buffer.copy_(_normal(buffer, draw) * 0.1)
        buffer[-1] = 0.2  # The skip class is chosen by a good share of tokens.
  return model


def save(model: transformers.ZayaForCausalLM, path: str) -> None:
  """Writes the native folder of `model`."""
  with contextlib.redirect_stderr(io.StringIO()):
    model.save_pretrained(path)


def batch(case: cases.Case) -> tuple[np.ndarray, np.ndarray]:
  """Tokens [3, 32] and a left-padding mask of 0, 1 and 13 positions."""
  rng = np.random.default_rng(case.seed)
  tokens = rng.integers(2, case.hf_config['vocab_size'], (3, 32))
  mask = np.arange(32) >= np.array([0, 1, 13])[:, None]
  return np.where(mask, tokens, 0).astype(np.int32), mask.astype(np.int32)


def logits(
  model: transformers.ZayaForCausalLM, tokens: np.ndarray, mask: np.ndarray
) -> np.ndarray:
  """[B, L, V] float32, without a cache."""
  with torch.no_grad():
    return _logits(model, tokens, mask).numpy()


def loss_and_gradients(
  model: transformers.ZayaForCausalLM, tokens: np.ndarray, mask: np.ndarray
) -> tuple[float, dict[str, np.ndarray]]:
  """Mean next-token cross-entropy over real tokens, and its gradients."""
  model.zero_grad()
  predicted = _logits(model, tokens, mask)[:, :-1]
  wanted = torch.tensor(tokens[:, 1:]).long()
  counted = torch.tensor(mask[:, :-1] * mask[:, 1:]).bool()
  loss = torch.nn.functional.cross_entropy(predicted[counted], wanted[counted])
  loss.backward()
  return loss.item(), {
    name: np.zeros(weight.shape, np.float32)
    if weight.grad is None
    else weight.grad.numpy()
    for name, weight in model.named_parameters()
  }


def greedy(
  model: transformers.ZayaForCausalLM,
  tokens: np.ndarray,
  mask: np.ndarray,
  steps: int,
) -> np.ndarray:
  """[B, steps] int: the likeliest continuations, through the cache.

  One row at a time, without its padding: that is not without effect in
  transformers where attention has biases.
  """
  how = transformers.GenerationConfig(
    max_new_tokens=steps, do_sample=False, use_cache=True, pad_token_id=0
  )
  grown = []
  for row, real in zip(tokens, mask > 0, strict=True):
    prompt = torch.tensor(row[real][None]).long()
    out = model.generate(
      prompt, attention_mask=torch.ones_like(prompt), generation_config=how
    )
    grown.append(out[0, prompt.shape[1] :].numpy())
  return np.stack(grown)


def _logits(model, tokens, mask):
  return model(
    torch.tensor(tokens).long(),
    attention_mask=torch.tensor(mask).long(),
    use_cache=False,
  ).logits


def _random(name, weight, draw):
  """Weights that keep activations of size one; nothing at its neutral value."""
  if 'temp' in name:
    return 0.5 + 1.5 * torch.rand(weight.shape, generator=draw)
  if 'router_states_scale' in name:
    return 0.5 + 0.3 * _normal(weight, draw)
  if name.endswith(('norm.weight', '_scale')):
    return 1 + 0.3 * _normal(weight, draw)
  if name.endswith('bias'):
    return 0.2 * _normal(weight, draw)
  if 'embed' in name:
    return _normal(weight, draw)
  # Of a convolution, the inputs are channels times taps.
  fan_in = (
    weight[0].numel()
    if weight.ndim == 2 or 'conv' in name
    else (weight.shape[-1])
  )
  gain = 2.0 if 'router_mlp' in name else 1.5  # Spread-out probabilities.
  return gain * _normal(weight, draw) / fan_in**0.5


def _normal(weight, draw):
  return torch.randn(weight.shape, generator=draw)
