# SPDX-License-Identifier: Apache-2.0
"""Trains a model in PyTorch for some seconds, scored with the clock stopped.

The loop that all peers share. Nothing is counted before the first step: the
program is compiled on steps that are then forgotten. The schedule is a function
of the share of the time that has gone, so it ends when the time does, and no
step is begun that would end after it.
"""

import copy
import math
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

_WARM_UP = 6  # Steps that compile forward, backward and update.


class Optimizer(Protocol):
  """What updates the parameters."""

  def update(self, step: int, share: float) -> None:
    """Applies the gradients and forgets them.

    Args:
      step: from 0.
      share: of the time that has gone, from 0 to 1.
    """


def device() -> str:
  """Where to train."""
  return 'cuda' if torch.cuda.is_available() else 'cpu'


def train(
  model: nn.Module,
  make_optimizer: Callable[[nn.Module], Optimizer],
  how: dict[str, Any],
) -> dict[str, Any]:
  """Trains for `how['seconds']`, or until the held-out text is predicted.

  Args:
    model: on its device; (tokens, targets) gives the mean loss in nats, and
      `losses` that of each target.
    make_optimizer: of the model.
    how: seconds; rows, of a step; train, the .npy of windows; held_out, the
      .npz of batches; bytes_per_token, of these; every, steps between scores,
      0: only the last; target, bits per byte at which training stops, or None;
      began, when the command was given, in Unix seconds.

  Returns:
    Steps, seconds, the last loss, and `curve`, a row for each score.
  """
  cuda = device() == 'cuda'
  run = torch.compile(model, disable=not cuda, dynamic=False)
  windows = _Windows(np.load(how['train']), how['rows'])
  held_out = dict(np.load(how['held_out']))

  def step(i, share):
    tokens = windows.batch(i)
    with torch.autocast(device(), torch.bfloat16, enabled=cuda):
      loss = run(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    optimizer.update(i, share)
    return loss.detach()

  first = copy.deepcopy(model.state_dict())
  optimizer = make_optimizer(model)
  for i in range(_WARM_UP):
    float(step(i, i / _WARM_UP))
  model.load_state_dict(first)
  optimizer = make_optimizer(model)
  clock, curve, steps, last = _Clock(how['seconds']), [], 0, None
  target = -math.inf if how['target'] is None else how['target']
  clock.go()
  while not clock.is_over(steps):
    new = step(steps, clock.share)
    steps += 1
    if last is not None:
      float(last)  # Waits for the step before: one is always on its way.
    last = new
    if how['every'] and steps % how['every'] == 0:
      float(last)
      clock.stop()
      curve.append(_score(model, held_out, how, steps, clock))
      if curve[-1]['bpb'] <= target:
        break
      clock.go()
  loss = float('nan') if last is None else float(last)
  clock.stop()
  if not curve or curve[-1]['step'] < steps:
    curve.append(_score(model, held_out, how, steps, clock))
  return {
    'torch': torch.__version__,
    'device': torch.cuda.get_device_name() if cuda else 'cpu',
    'parameters': sum(p.numel() for p in model.parameters()),
    'steps': steps,
    'train_s': clock.seconds,
    'step_s': clock.seconds / max(1, steps),
    'train_loss': loss,
    'bpb': curve[-1]['bpb'],
    'curve': curve,
    'peak_bytes': torch.cuda.max_memory_allocated() if cuda else None,
  }


class _Clock:
  """Seconds of training."""

  def __init__(self, limit: float):
    self._limit, self._before, self._since = limit, 0.0, 0.0
    self._runs = False

  def go(self) -> None:
    self._since, self._runs = time.perf_counter(), True

  def stop(self) -> None:
    """May be called twice."""
    self._before, self._runs = self.seconds, False

  @property
  def seconds(self) -> float:
    return self._before + self._runs * (time.perf_counter() - self._since)

  @property
  def share(self) -> float:
    return min(1.0, self.seconds / self._limit)

  def is_over(self, steps: int) -> bool:
    """Whether one step more, and the one on its way, end after the limit."""
    now = self.seconds
    return now + (2 * now / steps if steps else 0.0) > self._limit


class _Windows:
  """Batches of the train split, each epoch in another order."""

  def __init__(self, windows: np.ndarray, rows: int):
    self._windows = torch.from_numpy(windows.astype(np.int32)).to(device())
    self._rows, self._order = rows, None
    self._per_epoch = max(1, len(windows) // rows)

  def batch(self, step: int) -> torch.Tensor:
    """int64 [rows, L + 1]."""
    place = step % self._per_epoch
    if place == 0 or self._order is None:
      self._order = torch.randperm(len(self._windows), device=device())
    rows = self._order[place * self._rows : (place + 1) * self._rows]
    return self._windows[rows].long()


@torch.no_grad()
def _score(model, held_out, how, steps, clock) -> dict[str, float]:
  """Bits per byte of all targets that count."""
  nats = tokens = 0.0
  cuda = device() == 'cuda'
  for batch in zip(*(held_out[n] for n in _NAMES), strict=True):
    inputs, targets, weights = (torch.from_numpy(a).to(device()) for a in batch)
    with torch.autocast(device(), torch.bfloat16, enabled=cuda):
      losses = model.losses(inputs.long(), targets.long())
    nats += float((losses * weights).sum())
    tokens += float(weights.sum())
  return {
    'step': steps,
    'train_s': clock.seconds,
    'whole_s': time.time() - how['began'],
    'bpb': nats / tokens / math.log(2) / how['bytes_per_token'],
  }


_NAMES = ('tokens', 'targets', 'weights')
