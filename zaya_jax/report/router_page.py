# SPDX-License-Identifier: Apache-2.0
"""The page of the router microscope, from what router.json holds."""

from typing import Any

import numpy as np

from zaya_jax.report import curves, figures, page


def make(found: dict[str, Any]) -> page.Page:
  """The page; `found` is what `router.inspect` gives, with source and text."""
  layers = found['layers']
  dead, few = (
    sum(len(layer[name]) for layer in layers)
    for name in ('dead', 'nearly_dead')
  )
  experts = found['num_experts']
  worst = max(layers, key=lambda layer: layer['max_violation'])
  summary = [
    ['text', f'{found["text"]}, {found["tokens"]:,} tokens'],
    ['experts', f'{experts} in each of {len(layers)} layers'],
    [
      'dead experts',
      f'{dead} of {experts * len(layers)}, and {few} nearly: below a fifth of '
      'an even share',
    ],
    [
      'worst balance',
      f'layer {worst["layer"]}: {worst["max_violation"] + 1:.2f} times an even '
      'share',
    ],
  ]
  lacks = []
  if found['tokens'] < 50 * experts:
    lacks.append(
      f'{found["tokens"]:,} tokens are few for {experts} experts: loads and '
      'likes are noisy.'
    )
  return page.Page(
    title='Router microscope',
    status=found['source'],
    columns=[''],
    summary=summary,
    figures=[
      _layers(layers),
      _load(layers, experts),
      *_curves(layers),
      _bias(found),
      _likes(layers),
    ],
    lacks=lacks,
    footer='The same as numbers: the .json file beside this page.',
  )


def _layers(layers) -> figures.Figure:
  columns = ['layer', 'load entropy', 'token entropy', 'max violation', 'dead']
  columns += ['nearly dead', 'skip', 'chosen probability', 'choices by EDA']
  names = lambda experts: ' '.join(map(str, experts)) or '-'
  rows = [
    [
      layer['layer'],
      *(round(float(layer[k]), 4) for k in ('load_entropy', 'token_entropy')),
      round(float(layer['max_violation']), 4),
      names(layer['dead']),
      names(layer['nearly_dead']),
      round(float(layer['skip']), 4),
      round(float(layer['chosen_probability']), 4),
      round(layer['eda']['changed_choices'], 4),
    ]
    for layer in layers
  ]
  return figures.Figure(
    id='layers',
    wide=True,
    title='Layers',
    caption='Load entropy: 1 is an even load. Token entropy: 1 is a router '
    'that cannot decide. Max violation: load of the fullest expert over an '
    'even share, less 1. Dead: experts that no token of the text chose. Nearly '
    'dead: experts with less than a fifth of an even share.',
    kind='table',
    choices=[{'label': '', 'columns': columns, 'rows': rows}],
  )


def _load(layers, experts) -> figures.Figure:
  share_NX = np.array(
    [[one['share'] for one in layer['classes']] for layer in layers]
  )
  numbers = [layer['layer'] for layer in layers]
  percent_XN = share_NX.T * 100 * experts
  return figures.Figure(
    id='load',
    wide=True,
    title='Load of the experts',
    caption='Tokens that chose each expert, in per cent of an even share. '
    'Orange is too few, blue too many; an even share has the colour of the '
    'page. The last row is the skip class, which no expert computes.',
    kind='heat',
    choices=[figures.heat('', numbers, percent_XN, experts, 'layer')],
  )


def _curves(layers) -> list[figures.Figure]:
  """Numbers over the layers."""

  def figure(id, title, y_title, caption, parts):
    # The first layer has none before it.
    x = range(len(layers) - len(next(iter(parts.values()))), len(layers))
    traces = [
      {'name': name, 'x': list(x), 'y': curves.short(y), 'place': [i, 0]}
      for i, (name, y) in enumerate(parts.items())
    ]
    axes = {'x_title': 'layer', 'y_title': y_title, 'log': False}
    return figures.Figure(
      id=id,
      title=title,
      caption=caption,
      kind='lines',
      choices=[{'label': '', 'traces': traces, **axes}],
    )

  of = lambda name: [layer[name] for layer in layers]
  eda = lambda name: [layer['eda'][name] for layer in layers[1:]]
  return [
    figure(
      'entropy',
      'Entropy',
      'of its greatest value',
      'Load: how evenly tokens spread over experts. Tokens: how undecided the '
      'router is about one token, the mean.',
      {'load': of('load_entropy'), 'tokens': of('token_entropy')},
    ),
    figure(
      'eda',
      'Depth averaging (EDA)',
      'share',
      'Size of what comes from the layer before, of the router state; tokens '
      'that would go elsewhere without it; mean of the learned vector.',
      {
        'incoming share': eda('incoming_share'),
        'choices it changes': eda('changed_choices'),
        'mean of the vector': eda('mean'),
      },
    ),
  ]


def _bias(found) -> figures.Figure:
  trajectory = found.get('bias_trajectory') or {'layers': []}
  experts = found['num_experts']
  choices = []
  for n, bias_TX in enumerate(trajectory['layers']):
    traces = [
      {
        'name': f'expert {e}',
        'x': curves.short(trajectory['steps']),
        'y': curves.short(np.asarray(bias_TX)[:, e]),
        'place': [e, e // 6],
      }
      for e in range(experts)
    ]
    axes = {'x_title': 'step', 'y_title': 'bias', 'log': False}
    choices.append({'label': f'layer {n}', 'traces': traces, **axes})
  return figures.Figure(
    id='bias',
    wide=True,
    title='Balancing bias over the run',
    caption='It is added to the probabilities when an expert is chosen, and '
    'moved after each step towards an even load.',
    kind='lines',
    choices=choices,
    missing=''
    if choices
    else 'Nothing to draw: there is no experts.jsonl of the run beside this '
    'checkpoint. The bias as it is now is in the .json file.',
  )


def _likes(layers) -> figures.Figure:
  choices = []
  for layer in layers:
    classes = layer['classes']
    widths = [len(e[0]) for one in classes for e in one['examples']]
    rows = [
      [
        str(one['class']),
        f'{one["share"]:.1%}',
        _liked(one['likes']),
        _examples(one['examples'], max(widths, default=0)),
      ]
      for one in classes
    ]
    columns = ['expert', 'tokens', 'likes', 'examples']
    label = f'layer {layer["layer"]}'
    choices.append({'label': label, 'columns': columns, 'rows': rows})
  return figures.Figure(
    id='likes',
    wide=True,
    title='What each expert likes',
    caption='Tokens that it gets at least twice as often as the text has them, '
    'and more often than by chance, with how many times more often; then the '
    'choices the router was surest of.',
    kind='table',
    choices=choices,
  )


def _liked(likes: list[dict[str, Any]]) -> list[str]:
  """Texts of which every second is marked, four tokens a line."""
  parts = ['']
  width = max((len(like['token']) for like in likes), default=0)
  for i, like in enumerate(likes):
    parts[-1] += '\n' if i and i % 4 == 0 else ''
    room = width - len(like['token']) + len(' x1234.5  ')
    parts += [like['token'], f' x{like["lift"]:.1f}'.ljust(room)]
  return parts


def _examples(examples: list[list[str]], width: int) -> list[str]:
  """The same of examples, one a line; what is marked stands in one column."""
  flat = lambda text: text.replace('\n', ' ').replace('\t', ' ')
  parts = ['']
  for i, (before, token, after) in enumerate(examples):
    parts[-1] += ('\n' if i else '') + flat(before).rjust(width)
    parts += [token, flat(after)]
  return parts
