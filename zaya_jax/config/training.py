# SPDX-License-Identifier: Apache-2.0
"""The settings of training: its optimizer and checkpoints."""

import dataclasses
import math
from typing import Literal

from zaya_jax.config import fields

UsageError = fields.UsageError
field = fields.field


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rate:
  """The learning rate of a phase, a function of its tokens.

  Attributes:
    before: where the phase before ended; warmup begins there.
    start: after warmup.
    end: after the last token.
    shape: from `start` to `end`.
    warmup: tokens, of the phase.
    warmup_steps: of which the first has its share of the rise already, as in
      --optim.warmup_steps; 0: warmup is in tokens, and the first has none.
    tokens: of the phase.
  """

  before: float
  start: float
  end: float
  shape: Literal['cosine', 'linear', 'constant']
  warmup: int
  warmup_steps: int = 0
  tokens: int

  @property
  def ahead(self) -> int:
    """Tokens by which warmup is ahead: those of a step, or 0."""
    return self.warmup // self.warmup_steps if self.warmup_steps else 0

  def counted(self, step_tokens: int) -> 'Rate':
    """The rate with its warmup in tokens, of which a step has so many."""
    if not self.warmup_steps:
      return self
    tokens = self.warmup_steps * step_tokens
    if tokens > self.tokens:
      raise UsageError(
        f'lr.warmup_steps = {self.warmup_steps} are {tokens:,} tokens, and the '
        f'phase has {self.tokens:,}; lower it.'
      )
    return dataclasses.replace(self, warmup=tokens)

  def at(self, tokens: int) -> float:
    """The rate of the step before which the phase has given out `tokens`."""
    risen = tokens + self.ahead
    if risen < self.warmup:
      return self.before + (self.start - self.before) * risen / self.warmup
    if self.shape == 'constant':
      return self.start
    rest = max(1, self.tokens - self.warmup)
    done = min(1.0, max(0, tokens - self.warmup) / rest)
    if self.shape == 'linear':
      return self.start + (self.end - self.start) * done
    left = (1 + math.cos(math.pi * done)) / 2
    return self.end + (self.start - self.end) * left


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimConfig(fields.Section, prefix='optim.'):
  """Optimizer, learning rate, and the balancing bias of the router."""

  name: Literal['muon', 'adamw'] = field(
    'muon',
    'muon: Muon for hidden matrices and AdamW for the rest; adamw: AdamW for '
    'all.',
  )
  lr: float = field(2e-3, 'Peak learning rate of Muon and AdamW.', minimum=0.0)
  lr_final: float = field(
    2e-4, 'Learning rate at the end of the schedule.', minimum=0.0
  )
  schedule: Literal['cosine', 'wsd', 'constant'] = field(
    'cosine', 'Learning rate after warmup; wsd: constant, then linear decay.'
  )
  schedule_steps: int = field(
    0,
    'Steps of the schedule, warmup included; after them the learning rate '
    'stays. 0: --num_steps or, when a run resumes, those of its checkpoint.',
    minimum=0,
  )
  warmup_steps: int = field(20, 'Steps of linear warmup.', minimum=0)
  decay_steps: int = field(0, 'Steps of the decay of wsd.', minimum=0)
  weight_decay: float = field(
    0.1, 'Decoupled weight decay of matrices.', minimum=0.0
  )
  clip_norm: float = field(
    1.0, 'Clips gradients to this global norm; 0: no clipping.', minimum=0.0
  )
  momentum: float = field(0.95, 'Momentum of Muon.', minimum=0.0, maximum=1.0)
  nesterov: bool = field(True, 'Uses Nesterov momentum in Muon.')
  newton_schulz_steps: int = field(
    5, 'Newton-Schulz iterations of Muon.', minimum=1
  )
  newton_schulz_coefficients: Literal['jordan', 'polar_express', 'you'] = field(
    'jordan',
    'Polynomial coefficients. jordan: fixed; polar_express: best per '
    'iteration; you: those of Dion, for five iterations.',
  )
  newton_schulz_dtype: Literal['auto', 'float32', 'bfloat16', 'float16'] = (
    field(
      'auto',
      'Dtype of the iterations; auto: bfloat16 on accelerators, float32 on '
      'CPU. float16 is as fast as bfloat16 and more accurate.',
    )
  )
  newton_schulz_gram: Literal['auto', 'true', 'false'] = field(
    'auto',
    'Iterates on the Gram matrix if one side is at least twice the other: '
    'fewer FLOPs, slightly less accurate; auto: on CUDA from a width of 2,048 '
    'on.',
  )
  muon_split_gate_up: bool = field(
    False,
    "Orthogonalizes an expert's gate and up matrices separately, not as one "
    'fused matrix.',
  )
  beta1: float = field(
    0.9, 'Decay of the first moment of AdamW.', minimum=0.0, maximum=1.0
  )
  beta2: float = field(
    0.95, 'Decay of the second moment of AdamW.', minimum=0.0, maximum=1.0
  )
  adam_eps: float = field(1e-8, 'Epsilon of AdamW.', minimum=0.0)
  balance: Literal['quantile', 'adam', 'sign', 'loss'] = field(
    'quantile',
    'What moves the balancing bias of the router after a step. quantile: to '
    'where its tokens, or some thousands of them, would have spread evenly; '
    'adam: Adam on the share minus an even one, as published; sign: the sign '
    'of that; loss: nothing, an auxiliary loss teaches the router to spread.',
  )
  balance_loss: float = field(
    0.01,
    'Weight of the auxiliary loss of each layer with --optim.balance=loss.',
    minimum=0.0,
  )
  balance_lr: float = field(
    1e-3,
    'Step of the balancing bias with adam and sign; 0: it is frozen, whatever '
    '--optim.balance says.',
    minimum=0.0,
  )
  balance_centered: bool = field(
    False, 'Keeps the mean of the balancing biases of a layer at zero.'
  )
  accumulation: int = field(
    0,
    'Gradient accumulation: microbatches per global batch. 0: as few as fit '
    'into the memory of a GPU, one on a CPU.',
    minimum=0,
  )
  max_bad_steps: int = field(
    10,
    'Steps refused in a row (NaN, Inf or a spike) that end training.',
    minimum=1,
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.schedule == 'wsd' and not self.decay_steps:
      raise UsageError(
        f'--optim.schedule=wsd needs --optim.decay_steps={self.decay_steps} '
        'to be at least 1: the length of the decay.'
      )

  def rates(self, num_steps: int, step_tokens: int = 1) -> list[Rate]:
    """The learning rate in phases; the last one has no end.

    Args:
      num_steps: of the run, and of the schedule if `schedule_steps` is 0.
      step_tokens: tokens of a step.
    """
    steps = self.schedule_steps or num_steps
    warmup = min(self.warmup_steps, steps)
    decay = self.decay_steps if self.schedule == 'wsd' else 0
    decay = min(decay, steps - warmup)
    peak, final = _constant(self.lr), _constant(self.lr and self.lr_final)
    change = dataclasses.replace
    first = change(
      peak,
      before=0.0,
      warmup=warmup * step_tokens,
      warmup_steps=warmup,
      tokens=(steps - decay) * step_tokens,
    )
    if self.schedule == 'cosine':
      return [change(first, end=final.end, shape='cosine'), final]
    if decay:
      falls = change(
        peak, end=final.end, shape='linear', tokens=decay * step_tokens
      )
      return [rate for rate in (first, falls) if rate.tokens] + [final]
    return [first]

  @property
  def parts(self) -> int:
    """Microbatches of a step; one where nobody has decided."""
    return self.accumulation or 1


def _constant(rate: float) -> Rate:
  """A rate that stays, as long as a phase may last."""
  return Rate(
    before=rate, start=rate, end=rate, shape='constant', warmup=0, tokens=0
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GuardConfig(fields.Section, prefix='guard.'):
  """Detection of bad steps and faulty devices."""

  spike_limit: float = field(
    20.0,
    'Refuses a step whose loss or gradient norm exceeds the median of the '
    'last 32 by this many median absolute deviations (of at least 0.1 nats, '
    'and of half the median norm), unless the jump lasts for half of '
    '--optim.max_bad_steps; 0: refuses NaN and Inf only.',
    minimum=0.0,
  )
  vote_every: int = field(
    50,
    'Steps between votes, in which devices compare their copies of the same '
    'values; there is one before each save too; 0: none.',
    minimum=0,
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig(fields.Section, prefix='checkpoint.'):
  """Checkpoints: when they are saved, verified and deleted."""

  every: int = field(
    100, 'Steps between saves; 0: only after the last.', minimum=0
  )
  keep: int = field(3, 'Number of newest checkpoints to keep.', minimum=1)
  keep_every: int = field(
    0,
    'Also keeps the checkpoints of multiples of this step; 0: none.',
    minimum=0,
  )
  timeout_s: int = field(
    300, 'Seconds after which an unfinished save is an error.', minimum=1
  )
  max_failed_saves: int = field(
    3, 'Failed saves in a row that end the run.', minimum=1
  )
  host_memory_gb: float = field(
    0.0,
    'Host memory for a save, per process; a larger state is copied and '
    'written in stages while training waits; 0: no limit.',
    minimum=0.0,
  )
  seal_key_file: str = field(
    '',
    'File with the secret key that signs seals, or with several, one a line '
    'as ID:KEY, of which the first signs; checkpoints without such a signature '
    'are refused.',
  )
  action: Literal[
    'list', 'verify', 'seal', 'diff', 'reshape', 'prune', 'accept'
  ] = field(
    'list',
    'What --mode=checkpoints does. list; verify: reads every file; seal: '
    'seals a checkpoint that has no seal and is trusted, and renews what an '
    'older key has signed; diff: compares --source with --checkpoint.other; '
    'reshape: writes --source for --checkpoint.ranks devices to --output; '
    'prune: deletes what a run would delete; accept: lets a run go on although '
    'newer checkpoints are gone.',
  )
  other: str = field('', 'The second checkpoint of diff.')
  ranks: int = field(
    1, 'Devices that will read a reshaped checkpoint.', minimum=1
  )
  fast: tuple[str, ...] = field(
    (),
    'Node-local folders, DIR@STEPS, for copies of the state at these '
    'intervals, the fastest first: /dev/shm/zaya@20,/local/zaya@200. Each '
    "host holds its own part and a neighbour's. {process} in DIR is the index "
    'of the process.',
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    for tier in self.fast:
      folder, _, steps = tier.rpartition('@')
      if not folder or not steps.isdecimal() or not int(steps):
        raise UsageError(
          f'--checkpoint.fast={tier} must be DIR@STEPS with at least one step; '
          'for example /dev/shm/zaya@20.'
        )
