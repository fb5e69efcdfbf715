# SPDX-License-Identifier: Apache-2.0
"""Rules that a compiled step must keep.

The compiler is free to add messages and copies; each rule names one that would
be expensive on many devices.
"""

import math
import re
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.plan.compile import calls
from zaya_jax.plan.cost import collectives as collectives_lib
from zaya_jax.plan.cost import division, lint
from zaya_jax.runtime import chips as chips_lib

_SMALL = 2**18  # Elements of all that is summed beside gradients.
_HIDDEN = 0.75  # Of the messages of a ring.
# Most of all bytes; keys and values, which attention waits for, come on top.
EXPOSED, EXPOSED_CONTEXT = 0.15, 0.2
_TOLD = 1e7  # Bytes of one kind.
WARNING = 'Involuntary full rematerialization'


def check(
  config: config_lib.Config,
  layout: division.Layout,
  chip: chips_lib.Chip,
  compiled: dict[str, Any],
) -> list[lint.Finding]:
  """All rules, those that hold too.

  Args:
    config: of the run.
    layout: of its step.
    chip: of its devices.
    compiled: what `rocm.compile_step` returns.
  """
  found = [
    *_newton_schulz(config, compiled),
    *_messages(config, layout, chip, compiled['messages']),
    _logits(config, layout, compiled['arrays']),
    _dense(config, layout, compiled['arrays']),
    _rematerialized(compiled),
    _peak(compiled, chip.memory),
    *calls.check(compiled),
  ]
  if layout.sizes['context'] > 1 and config.mesh.context_mode == 'ring':
    found.append(_ring(compiled['messages']))
  return found


def exposed(compiled: dict[str, Any], most: float = EXPOSED) -> lint.Finding:
  """How much is sent while no product of matrices runs.

  Of a program for GPUs: that of a CPU sends nothing meanwhile.

  Args:
    compiled: what `rocm.compile_step` returns.
    most: share of all bytes.
  """
  late = sum(compiled['exposed'].values())
  total = sum(found['bytes'] for found in compiled['collectives'].values())
  kinds = ', '.join(
    f'{kind} {sent / 1e9:,.2f} GB'
    for kind, sent in sorted(compiled['exposed'].items())
    if sent >= _TOLD
  )
  return lint.Finding(
    rule=f'at most {most:.0%} of all bytes are exposed',
    value=f'{late / 1e9:,.2f} of {total / 1e9:,.2f} GB, '
    f'{late / max(total, 1):.1%}' + (f': {kinds}' if kinds else ''),
    good=late <= most * total,
    advice='Layers send their matrices one by one with '
    '--optim.accumulation=1; see docs/parallelism.md.',
  )


def _newton_schulz(config, compiled):
  if config.optim.name != 'muon':
    return
  inside = [m for m in compiled['messages'] if 'newton_schulz' in m['scope']]
  # Without that name there would be nothing to look at.
  known = any('newton_schulz' in name for name in compiled['scopes'])
  yield lint.Finding(
    rule='nothing is sent within Newton-Schulz',
    value=f'{len(inside)} messages' if known else 'not found',
    good=known and not inside,
    advice='Each device must hold whole matrices: optim.muon.',
  )


def _messages(config, layout, chip, messages):
  """One sum of gradients and one gather of parameters, of known bytes.

  The compiler joins messages, even of the passes and of the update, and may
  change types before it sends: what is counted are elements of all together.
  """
  narrow = ('keys, values', 'Muon', 'expert weights', 'layer expert weights')
  width = lambda c: chip.width if c.what in narrow else 4
  planned = collectives_lib.plan(config, layout, chip)
  for kind, what, slack in (
    ('reduce-scatter', 'gradients are summed once', 0),
    ('all-reduce', 'only what nothing divides is summed whole', _SMALL),
    ('all-gather', 'parameters are gathered once', 0),
  ):
    known = [c for c in planned if c.kind == kind]
    # Segments and counts of tokens are integers.
    seen = [m for m in messages if m['kind'] == kind and 'f' in m['dtype']]
    least = round(sum(c.bytes / width(c) for c in known))
    sent = sum(m['elements'] for m in seen)
    most, calls = sum(c.count for c in known), sum(m['calls'] for m in seen)
    wide = kind == 'all-gather' or all(m['dtype'] == 'f32' for m in seen)
    yield lint.Finding(
      rule=f'{what}: {kind}, {least:,} elements in {most:,} calls',
      value=f'{sent:,} in {calls:,}' + ('' if wide else ', not float32'),
      good=wide and 0 <= sent - least <= slack and (calls <= most or slack > 0),
      advice='See zaya_jax.parallel.partition.',
    )


def _logits(config, layout, arrays):
  """Of all tokens of a part, float32."""
  vocab = config.model.vocab_size
  least = vocab * layout.tokens
  found = [
    name
    for name in _large(arrays, layout, vocab, least)
    if name.startswith('f32')
  ]
  return lint.Finding(
    rule='logits of all tokens are never held',
    value=', '.join(found) or 'none',
    good=not found,
    advice='Use ops.linear_cross_entropy, which takes chunks of tokens.',
  )


def _dense(config, layout, arrays):
  """Each token at each expert."""
  model = config.model
  least = model.num_experts * layout.tokens
  least *= min(model.d_model, model.d_expert)
  found = list(_large(arrays, layout, model.num_experts, least))
  return lint.Finding(
    rule='no array of [experts, tokens, width]',
    value=', '.join(found) or 'none',
    good=not found,
    advice='Sort tokens by expert, as ops.expert_mlp does.',
  )


def _rematerialized(compiled):
  count = compiled['rematerialized']
  return lint.Finding(
    rule='nothing is gathered whole to be divided anew',
    value=f'{count} warnings',
    good=not count,
    advice=f'XLA says "{WARNING}": name the sharding where it changes.',
  )


def _peak(compiled, capacity):
  peak = compiled['arguments'] + compiled['temporary']
  return lint.Finding(
    rule=f'peak below {capacity / 1e9:,.0f} GB',
    value=f'{peak / 1e9:,.1f} GB, {(capacity - peak) / 1e9:+,.1f} GB spare',
    good=peak <= capacity,
    advice='Lower --data.batch_size, or raise --mesh.fsdp or '
    '--optim.accumulation.',
  )


def _ring(messages):
  """Keys and values on their way while others are in use.

  The last message of a pass, of gradients, has nothing to hide behind.
  """
  # Halos are small, and wanted at once.
  size = lambda m: m['bytes'] / m['calls']
  sent = [m for m in messages if m['kind'] == 'collective-permute']
  large = [m for m in sent if size(m) > max(map(size, sent)) / 16]
  hidden = [m for m in large if m['hidden']]
  return lint.Finding(
    rule='the ring sends while it computes',
    value=f'{len(hidden)} of {len(large)}',
    good=bool(large) and len(hidden) >= _HIDDEN * len(large),
    advice='Ask for the next keys before the present ones are used.',
  )


def _large(arrays, layout, size, least):
  """Arrays of `least` elements, with all tokens and an axis of `size`."""
  tokens = {layout.tokens, layout.rows, layout.columns}
  for name in arrays:
    dims = [int(n) for n in re.findall(r'\d+', name.split('[')[1])]
    if size in dims and math.prod(tokens & {*dims}) >= layout.tokens:
      if math.prod(dims) >= least:
        yield name
