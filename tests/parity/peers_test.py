# SPDX-License-Identifier: Apache-2.0
"""The dense GPTs that presets race against: sizes, Muon, clock and score."""

import math
import time

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.peers import dense_gpt, strong_gpt, timed

LAYERS, WIDTH, VOCAB, LENGTH = 5, 16, 40, 8


def model(module=strong_gpt, seed=0):
  torch.manual_seed(seed)
  return module.Model(LAYERS, WIDTH, VOCAB, LENGTH)


def count(parameters):
  return sum(p.numel() for p in parameters)


def test_parameters_of_the_strong_one_by_hand():
  parts = strong_gpt.parts(model())
  matrices = LAYERS * (3 + 1 + 4 + 4) * WIDTH**2
  assert count(parts['matrices']) == matrices
  assert count(parts['head']) == VOCAB * WIDTH
  # Of the stream, and two of values, which the last layers share.
  assert count(parts['embeddings']) == 3 * VOCAB * WIDTH
  # Two for the stream in each layer, two for values in four, a skip in two.
  assert count(parts['scalars']) == 2 * LAYERS + 2 * 4 + 2
  assert count(model().parameters()) == sum(map(count, parts.values()))


def test_parameters_of_the_plain_one_by_hand():
  layers = LAYERS * (12 * WIDTH**2 + 2 * WIDTH)
  expected = layers + (VOCAB + LENGTH) * WIDTH + WIDTH
  assert count(model(dense_gpt).parameters()) == expected


def newton_schulz(x):
  """In float64, as the blog post on Muon defines it."""
  transposed = x.shape[0] > x.shape[1]
  x = x.T if transposed else x
  x = x / np.linalg.norm(x)
  for _ in range(5):
    gram = x @ x.T
    x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
  return x.T if transposed else x


@pytest.mark.parametrize('shape', [(6, 6), (4, 12), (12, 4)])
def test_orthogonalize_is_newton_schulz(shape):
  x = np.random.default_rng(0).normal(size=shape)
  found = strong_gpt.orthogonalize(torch.from_numpy(x), torch.float64)
  np.testing.assert_allclose(found.numpy(), newton_schulz(x), atol=1e-6)
  rough = strong_gpt.orthogonalize(torch.from_numpy(x)).double().numpy()
  np.testing.assert_allclose(rough, newton_schulz(x), atol=0.06)
  values = np.linalg.svd(newton_schulz(x), compute_uv=False)
  assert values.min() > 0.5 and values.max() < 1.3


def muon_by_hand(weights, gradients, rate, momenta, nesterov=True):
  """Two or more steps on one matrix, in float64."""
  buffer = np.zeros_like(weights)
  for gradient, beta in zip(gradients, momenta, strict=True):
    buffer = beta * buffer + (1 - beta) * gradient
    towards = (1 - beta) * gradient + beta * buffer if nesterov else buffer
    scale = max(1.0, weights.shape[0] / weights.shape[1]) ** 0.5
    weights = weights - rate * scale * newton_schulz(towards)
  return weights


@pytest.mark.parametrize('nesterov', [True, False])
def test_muon_is_nesterov_momentum_made_orthogonal(nesterov, monkeypatch):
  exact = strong_gpt.orthogonalize
  monkeypatch.setattr(
    strong_gpt, 'orthogonalize', lambda x: exact(x, torch.float64)
  )
  rng = np.random.default_rng(1)
  # A stack of three, and two of one shape that are updated together.
  shapes = [(3, 4, 4), (8, 4), (8, 4)]
  weights = [rng.normal(size=shape) for shape in shapes]
  params = [nn.Parameter(torch.from_numpy(w.copy())) for w in weights]
  muon = strong_gpt.Muon(params, compiles=False)
  gradients = [[rng.normal(size=shape) for shape in shapes] for _ in range(3)]
  momenta = [0.85, 0.9, 0.95]
  for beta, step in zip(momenta, gradients, strict=True):
    for p, gradient in zip(params, step, strict=True):
      p.grad = torch.from_numpy(gradient)
    muon.step(0.1, beta)
  agree = []
  for i, (p, w) in enumerate(zip(params, weights, strict=True)):
    mine = [step[i].reshape(-1, *w.shape[-2:]) for step in gradients]
    stack = w.reshape(-1, *w.shape[-2:])
    expected = [
      muon_by_hand(one, [g[j] for g in mine], 0.1, momenta, nesterov)
      for j, one in enumerate(stack)
    ]
    found = p.detach().numpy().reshape(stack.shape)
    agree.append(np.allclose(found, expected, atol=1e-5))
  # Without Nesterov it would be something else: the comparison can see it.
  assert all(agree) if nesterov else not any(agree)


def test_strong_one_starts_even_and_looks_back_alone():
  gpt = model()
  tokens = torch.randint(VOCAB, (2, LENGTH))
  losses = gpt.losses(tokens, tokens)
  torch.testing.assert_close(losses, torch.full((2, LENGTH), math.log(VOCAB)))
  with torch.no_grad():
    for p in gpt.parameters():
      p.add_(0.1 * torch.randn_like(p))
  other = tokens.clone()
  other[:, -1] = (other[:, -1] + 1) % VOCAB
  targets = torch.zeros_like(tokens)
  before, after = gpt.losses(tokens, targets), gpt.losses(other, targets)
  torch.testing.assert_close(before[:, :-1], after[:, :-1])
  assert not torch.allclose(before[:, -1], after[:, -1])


def test_rotation_keeps_lengths_and_depends_on_distance_alone():
  gpt = model()
  q, k = torch.randn(2, 1, WIDTH)
  turned = [
    strong_gpt.rotate(x.expand(LENGTH, -1), gpt.cos, gpt.sin) for x in (q, k)
  ]
  torch.testing.assert_close(turned[0].norm(dim=1), q.norm().expand(LENGTH))
  products = turned[0] @ turned[1].T
  for distance in range(LENGTH):
    diagonal = products.diagonal(distance)
    torch.testing.assert_close(diagonal, diagonal[:1].expand(len(diagonal)))


def test_trapezoid():
  shares = [0.0, 0.01, 0.3, 0.55, 0.775, 1.0]
  found = [strong_gpt.trapezoid(share) for share in shares]
  assert found == pytest.approx([0.05, 0.55, 1.0, 1.0, 0.5, 0.0])


class Counting(nn.Module):
  """Predicts the token after each by adding 1, after some steps."""

  def __init__(self):
    super().__init__()
    self.sure = nn.Parameter(torch.zeros(()))

  def forward(self, tokens, targets):
    return self.losses(tokens, targets).mean()

  def losses(self, tokens, targets):
    ones = nn.functional.one_hot((tokens + 1) % 4, 4)
    found = nn.functional.cross_entropy(
      (self.sure * ones).flatten(0, 1), targets.flatten(), reduction='none'
    )
    return found.view(targets.shape)


class Slow:
  """SGD that takes its time, and keeps what it is told."""

  def __init__(self, module, seconds=0.01):
    self.module, self.seconds, self.shares = module, seconds, []

  def update(self, step, share):
    time.sleep(self.seconds)
    self.shares.append(share)
    with torch.no_grad():
      self.module.sure += 0.5
    self.module.zero_grad()


@pytest.fixture(name='how')
def _how(tmp_path):
  windows = (np.arange(5)[None] + np.arange(12)[:, None]) % 4
  np.save(tmp_path / 'train.npy', windows.astype(np.uint16))
  held_out = windows[None, :2].astype(np.int32)
  weights = np.ones((1, 2, 4), np.float32)
  weights[0, 1, 2:] = 0
  np.savez(
    tmp_path / 'held_out.npz',
    tokens=held_out[..., :-1],
    targets=np.where(weights > 0, held_out[..., 1:], 0),
    weights=weights,
  )
  return {
    'seconds': 1.0,
    'rows': 4,
    'train': str(tmp_path / 'train.npy'),
    'held_out': str(tmp_path / 'held_out.npz'),
    'bytes_per_token': 2.0,
    'every': 0,
    'target': None,
    'began': time.time(),
  }


def test_a_peer_gets_its_seconds_and_none_more(how):
  made = []
  found = timed.train(
    Counting(), lambda m: made.append(Slow(m)) or made[-1], how
  )
  assert 0.0 < found['train_s'] <= how['seconds']
  assert len(made) == 2 and len(made[1].shares) == found['steps']  # Anew.
  assert made[1].shares == sorted(made[1].shares)
  # What the first six steps, which compile, have learned is forgotten.
  nats = math.log(math.exp(0.5 * found['steps']) + 3) - 0.5 * found['steps']
  expected = nats / math.log(2) / how['bytes_per_token']
  assert found['bpb'] == pytest.approx(expected, abs=1e-6)


def test_scores_are_not_on_the_clock_and_the_target_ends(how, monkeypatch):
  score = timed._score
  monkeypatch.setattr(
    timed, '_score', lambda *args: time.sleep(0.2) or score(*args)
  )
  how |= {'every': 2, 'target': 0.1, 'seconds': 30.0}
  found = timed.train(Counting(), Slow, how)
  *before, last = found['curve']
  assert last['bpb'] <= 0.1 < before[-1]['bpb'] and last['step'] == 8
  assert found['steps'] == 8 and found['train_s'] == last['train_s']
  assert last['whole_s'] - before[0]['whole_s'] >= 0.6
  assert last['whole_s'] > last['train_s'] + 0.8
