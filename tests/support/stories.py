# SPDX-License-Identifier: Apache-2.0
"""Stories of events on four nodes, and the actions that `decide` gives."""

from zaya_jax.aegis.decide import decide as decide_lib
from zaya_jax.aegis.decide import events
from zaya_jax.aegis.decide import state as state_lib

# Four nodes of two ranks.
NODES = ('a', 'b', 'c', 'd')


def ranks(codes=(), entered=(), **of_rank):
  """Progress of eight ranks, of which some ended and some are behind."""
  codes, entered = dict(codes), dict(entered)
  return tuple(
    events.Progress(
      rank=rank,
      node=NODES[rank // 2],
      phase=of_rank.get('phases', {}).get(rank, 'step'),
      process=of_rank.get('processes', {}).get(rank, 'S'),
      entered=entered.get(rank, 7),
      exit_code=codes.get(rank),
    )
    for rank in range(8)
  )


def ended(first, codes, **more):
  return 'exit', {'rank': first, 'progress': ranks(codes), **more}


def hang(**more):
  return 'hang', {'progress': ranks(**more)}


def ruled(kind, action, node=None, source='kern', **more):
  return kind, {'action': action, 'node': node, 'source': source, **more}


_WORDS = {
  'killed 1': ended(1, {1: -9, 0: -6, 2: 75, 3: 75}),
  'killed 4': ended(4, {4: -9}),
  'aborted 1': ended(
    0, {**dict.fromkeys(range(8), 75), 1: -6}, detail='is gone'
  ),
  'raised 1': ended(1, {1: 1, 0: 75, 2: 75}),
  'ecc b': ruled('ecc_uncorrectable', 'replace_node', 'b'),
  'burst b': ruled('ecc_burst', 'checkpoint_and_drain', 'b'),
  'reset b': ruled('gpu_reset', 'replace_node', 'b'),
  'oom a': ruled('out_of_memory', 'warn', 'a'),
}


def event(told, number=0, apart_s=60.0):
  """The event of KIND, 'KIND STEP', 'KIND NODE' or one of `_WORDS`."""
  if isinstance(told, str):
    kind, _, about = told.partition(' ')
    fields = {'step': int(about)} if about.isdigit() else {'node': about}
    told = _WORDS.get(told, (kind, fields if about else {}))
  kind, fields = told
  fields = {'time_s': 1e9 + apart_s * number, 'detail': kind, **fields}
  return events.Event(kind=kind, **fields)


def tell(story, *, spares=('s', 't'), apart_s=60.0, **policy):
  """All actions of a story whose events are `apart_s` seconds apart.

  Its events are words, as `event` reads them, or (kind, fields of the event).
  """
  state = state_lib.start(
    NODES, spares=spares, policy=state_lib.Policy(**policy)
  )
  actions = []
  for number, told in enumerate(story):
    seen = event(told, number, apart_s)
    state, action = decide_lib.decide(state, seen)
    actions.append(action)
  return state, actions


def done(story, **options):
  """The kinds of the actions of a story, without those that are ignored."""
  _, actions = tell(story, **{'spikes': 3, **options})
  return [
    action.kind + (f' {action.exit_code}' if action.kind == 'stop' else '')
    for action in actions
    if action.kind != 'ignore'
  ]
