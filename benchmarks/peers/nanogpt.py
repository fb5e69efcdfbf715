# SPDX-License-Identifier: Apache-2.0
"""nanoGPT's recipe for a CPU, written anew: what zaya_jax is timed against.

The published command is `train.py config/train_shakespeare_char.py` with
`--device=cpu --compile=False --eval_iters=20 --log_interval=1 --block_size=64
--batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --max_iters=2000
--lr_decay_iters=2000 --dropout=0.0`: a GPT-2 without biases, tied embeddings,
AdamW. Prints a JSON object per evaluation.
"""

import argparse
import json
import math
import pathlib
import tempfile

import numpy as np
import torch
from torch import nn
from torch.nn import functional

NUM_LAYERS = 4
NUM_HEADS = 4
D_MODEL = 128
BLOCK_SIZE = 64
BATCH_SIZE = 12
WARMUP_STEPS = 100
LR, LR_FINAL = 1e-3, 1e-4
BETAS = (0.9, 0.99)
WEIGHT_DECAY = 0.1
CLIP_NORM = 1.0
EVAL_EVERY = 250
EVAL_BATCHES = 20
INIT_STD = 0.02


def main() -> None:
  """Trains on the first nine tenths of a text, evaluates on the rest."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--input', type=pathlib.Path, required=True)
  parser.add_argument('--num_steps', type=int, default=2000)
  parser.add_argument('--seed', type=int, default=1337)
  args = parser.parse_args()
  torch.manual_seed(args.seed)
  train, val, vocab_size = encode(args.input.read_text(encoding='utf-8'))
  with tempfile.TemporaryDirectory() as folder:
    fit(
      Transformer(vocab_size),
      {'train': train, 'val': val},
      args.num_steps,
      pathlib.Path(folder, 'ckpt.pt'),
    )


def encode(text: str) -> tuple[np.ndarray, np.ndarray, int]:
  """Numbers the characters of `text` in their order.

  Returns:
    Training part and held-out last tenth, both uint16 [characters], and the
    number of different characters.
  """
  characters = sorted(set(text))
  number = {character: i for i, character in enumerate(characters)}
  ids = np.array([number[character] for character in text], np.uint16)
  cut = int(len(text) * 0.9)
  return ids[:cut], ids[cut:], len(characters)


class Transformer(nn.Module):
  """Pre-norm GPT-2 without biases; `forward` returns the mean loss."""

  def __init__(self, vocab_size: int):
    super().__init__()
    self.embedding = nn.Embedding(vocab_size, D_MODEL)
    self.position = nn.Embedding(BLOCK_SIZE, D_MODEL)
    self.blocks = nn.ModuleList([Block() for _ in range(NUM_LAYERS)])
    self.norm = nn.LayerNorm(D_MODEL, bias=False)
    for name, weight in self.named_parameters():
      # What is added to the residual stream starts smaller, as in GPT-2.
      residual = name.endswith(('out.weight', 'down.weight'))
      if weight.dim() > 1:
        std = INIT_STD / math.sqrt(2 * NUM_LAYERS) if residual else INIT_STD
        nn.init.normal_(weight, std=std)

  def forward(self, ids_BL: torch.Tensor, next_BL: torch.Tensor):
    """Mean cross-entropy in nats, float32 [], of int64 [B, L] tokens."""
    position_L = torch.arange(ids_BL.shape[1])
    x_BLD = self.embedding(ids_BL) + self.position(position_L)
    for block in self.blocks:
      x_BLD = block(x_BLD)
    logits_BLV = self.norm(x_BLD) @ self.embedding.weight.T
    return functional.cross_entropy(logits_BLV.flatten(0, 1), next_BL.flatten())


class Block(nn.Module):
  """Causal attention, then a GELU network four times as wide."""

  def __init__(self):
    super().__init__()
    self.norm_attention = nn.LayerNorm(D_MODEL, bias=False)
    self.qkv = nn.Linear(D_MODEL, 3 * D_MODEL, bias=False)
    self.out = nn.Linear(D_MODEL, D_MODEL, bias=False)
    self.norm_mlp = nn.LayerNorm(D_MODEL, bias=False)
    self.up = nn.Linear(D_MODEL, 4 * D_MODEL, bias=False)
    self.down = nn.Linear(4 * D_MODEL, D_MODEL, bias=False)

  def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:
    """[B, L, D] to [B, L, D]."""
    x_BLD = x_BLD + self._attend(self.norm_attention(x_BLD))
    hidden_BLF = functional.gelu(self.up(self.norm_mlp(x_BLD)))
    return x_BLD + self.down(hidden_BLF)

  def _attend(self, x_BLD: torch.Tensor) -> torch.Tensor:
    q_BHLC, k_BHLC, v_BHLC = (
      part.unflatten(2, (NUM_HEADS, -1)).transpose(1, 2)
      for part in self.qkv(x_BLD).split(D_MODEL, dim=2)
    )
    mixed_BHLC = functional.scaled_dot_product_attention(
      q_BHLC, k_BHLC, v_BHLC, is_causal=True
    )
    return self.out(mixed_BHLC.transpose(1, 2).flatten(2))


def fit(
  model: Transformer,
  parts: dict[str, np.ndarray],
  num_steps: int,
  checkpoint: pathlib.Path,
) -> None:
  """Trains `model`, printing an evaluation every EVAL_EVERY steps."""
  optimizer = _make_optimizer(model)
  best = math.inf
  batch = _sample(parts['train'])
  for step in range(num_steps + 1):
    for group in optimizer.param_groups:
      group['lr'] = _learning_rate(step, num_steps)
    if step % EVAL_EVERY == 0:
      losses = {name: _evaluate(model, ids) for name, ids in parts.items()}
      shown = {f'{name}/loss': loss for name, loss in losses.items()}
      print(json.dumps({'step': step, **shown}), flush=True)
      if step and losses['val'] < best:
        torch.save([model.state_dict(), optimizer.state_dict()], checkpoint)
      best = min(best, losses['val'])
    loss = model(*batch)
    batch = _sample(parts['train'])
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    loss.item()  # The recipe logs every step.


def _make_optimizer(model: nn.Module) -> torch.optim.AdamW:
  """Decays matrices and embeddings, not the scales of the norms."""
  weights = list(model.parameters())
  return torch.optim.AdamW(
    [
      {
        'params': [weight for weight in weights if weight.dim() > 1],
        'weight_decay': WEIGHT_DECAY,
      },
      {
        'params': [weight for weight in weights if weight.dim() == 1],
        'weight_decay': 0.0,
      },
    ],
    lr=LR,
    betas=BETAS,
  )


def _learning_rate(step: int, num_steps: int) -> float:
  if step < WARMUP_STEPS:
    return LR * (step + 1) / (WARMUP_STEPS + 1)
  done = (step - WARMUP_STEPS) / max(1, num_steps - WARMUP_STEPS)
  return LR_FINAL + (LR - LR_FINAL) * 0.5 * (1 + math.cos(math.pi * done))


def _sample(ids: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
  starts = torch.randint(len(ids) - BLOCK_SIZE, (BATCH_SIZE,)).tolist()
  rows = [ids[start : start + BLOCK_SIZE + 1] for start in starts]
  windows = torch.from_numpy(np.stack(rows).astype(np.int64))
  return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


@torch.no_grad()
def _evaluate(model: Transformer, ids: np.ndarray) -> float:
  losses = [model(*_sample(ids)).item() for _ in range(EVAL_BATCHES)]
  return sum(losses) / len(losses)


if __name__ == '__main__':
  main()
