# SPDX-License-Identifier: Apache-2.0
"""What `benchmarks.ablations` changes, and what the reports say of it.

In flags {2} stands for half of the heads that the width has room for, D / C,
and so on: a preset for which it is no whole number does not have the variant.
"""

import re
from typing import NamedTuple

from zaya_jax import config as config_lib


class Group(NamedTuple):
  """Variants that answer one question.

  Attributes:
    says: what the reports say.
    lower: whether they say that the preset has the lower loss; None: nothing.
    flags: of each variant.
  """

  says: str
  lower: bool | None
  flags: dict[str, str]


_GQA = '--model.attention=gqa --model.num_heads={1}'
GROUPS = {
  'attention': Group(
    'CCGQA 2.286 nats, MHA, GQA 2.297, MLA 2.321 (dense 1B, 300B; 2510.04476)',
    True,
    {
      'mha': f'{_GQA} --model.num_kv_heads={{1}}',
      'gqa 3x': f'{_GQA} --model.num_kv_heads={{3}}',
      'gqa 4x': f'{_GQA} --model.num_kv_heads={{4}}',
      # Latent vectors as narrow as the keys and values of these.
      'mla 3x': f'{_GQA} --model.num_kv_heads={{3}}',
      'mla 4x': f'{_GQA} --model.num_kv_heads={{4}}',
    },
  ),
  'compression': Group(
    'CCA 2.307 nats, CCGQA 2.286, with keys compressed more (2510.04476)',
    None,
    {
      'cca 2x': '--model.num_heads={2} --model.num_kv_heads={2}',
      'cca 4x': '--model.num_heads={4} --model.num_kv_heads={4}',
      'ccgqa 2x 4x': '--model.num_heads={2} --model.num_kv_heads={4}',
      'ccgqa 2x 8x': '--model.num_heads={2} --model.num_kv_heads={8}',
    },
  ),
  'router': Group(
    'entropy 0.99 after 400 steps, a linear router after 900 (2605.05365)',
    True,
    {
      'linear router': '--model.router=linear',
      'no eda': '--model.eda=false',
    },
  ),
  'balance': Group(
    'Adam balances faster and steadier than the sign (2605.05365)',
    None,
    {
      'auxiliary loss': '--optim.balance=loss',
      'auxiliary loss 0.1': '--optim.balance=loss --optim.balance_loss=0.1',
      'adam': '--optim.balance=adam',
      'sign': '--optim.balance=sign',
    },
  ),
  'skip': Group('nothing', None, {'skip off': '--model.skip=off'}),
  'dense': Group(
    'the base model is near dense ones of 5 times its active size (2511.17127)',
    True,
    {'dense': '--model.num_experts=1 --model.skip=off'},
  ),
  'residual': Group(
    'in use, without a figure (2605.05365)',
    None,
    {'no residual scaling': '--model.residual_scaling=false'},
  ),
  'optimizer': Group(
    'Muon in use, without a figure (2511.17127)',
    True,
    {
      'adamw': '--optim.name=adamw',
      'polar express': '--optim.newton_schulz_coefficients=polar_express',
      'dion': '--optim.newton_schulz_coefficients=you',
      'gate and up split': '--optim.muon_split_gate_up',
      'momentum 0.85': '--optim.momentum=0.85',
    },
  ),
}
BASE = 'preset'
# What is no setting of the trainer is a program of its own.
_MODULES = dict.fromkeys(('mla 3x', 'mla 4x'), 'benchmarks.peers.mla')


def flags(variant: str, model: config_lib.ModelConfig) -> list[str] | None:
  """The flags of a variant for a preset; None: the preset does not have it.

  Args:
    variant: of a group, or `BASE`.
    model: of the preset.
  """
  found = [g.flags[variant] for g in GROUPS.values() if variant in g.flags]
  text = found[0] if found else ''
  whole = model.d_model // model.head_dim
  for part in {int(n) for n in re.findall(r'\{(\d+)\}', text)}:
    if whole % part or not whole:
      return None
    text = text.replace(f'{{{part}}}', str(whole // part))
  return text.split()


def module(variant: str) -> str:
  """The program that trains a variant, for `python -m`."""
  return _MODULES.get(variant, 'zaya_jax.main')


def group_of(variant: str) -> Group | None:
  """The group of a variant; None: it is the preset."""
  return next((g for g in GROUPS.values() if variant in g.flags), None)
