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
  names = lambda experts: ' '.join(map(str, experts)) or '-'
  columns = {
    'layer': lambda layer: layer['layer'],
    'load entropy': lambda layer: round(layer['load_entropy'], 4),
    'token entropy': lambda layer: round(layer['token_entropy'], 4),
    'max violation': lambda layer: round(layer['max_violation'], 4),
    'dead': lambda layer: names(layer['dead']),
    'nearly dead': lambda layer: names(layer['nearly_dead']),
    'skip': lambda layer: round(layer['skip'], 4),
    'chosen probability': lambda layer: round(layer['chosen_probability'], 4),
    'choices by EDA': lambda layer: round(layer['eda']['changed_choices'], 4),
  }
  rows = [[get(layer) for get in columns.values()] for layer in layers]
  return figures.Figure(
    id='layers',
    wide=True,
    title='Layers',
    caption='Load entropy: 1 is an even load. Token entropy: 1 is a router '
    'that cannot decide. Max violation: load of the fullest expert over an '
    'even share, less 1. Dead: experts that no token of the text chose. Nearly '
    'dead: experts with less than a fifth of an even share.',
    kind='table',
    choices=[{'label': '', 'columns': [*columns], 'rows': rows}],
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
  of = lambda name: [layer[name] for layer in layers]
  # The first layer has none before it.
  eda = lambda name: [layer['eda'][name] for layer in layers[1:]]
  entropies = {'load': of('load_entropy'), 'tokens': of('token_entropy')}
  parts = {
    'incoming share': eda('incoming_share'),
    'choices it changes': eda('changed_choices'),
    'mean of the vector': eda('mean'),
  }
  axes = ('layer', 'of its greatest value'), ('layer', 'share')
  numbers = range(len(layers))
  return [
    figures.Figure(
      id='entropy',
      title='Entropy',
      caption='Load: how evenly tokens spread over experts. Tokens: how '
      'undecided the router is about one token, the mean.',
      kind='lines',
      choices=[_lines('', axes[0], numbers, entropies)],
    ),
    figures.Figure(
      id='eda',
      title='Depth averaging (EDA)',
      caption='Size of what comes from the layer before, of the router state; '
      'tokens that would go elsewhere without it; mean of the learned vector.',
      kind='lines',
      choices=[_lines('', axes[1], numbers[1:], parts)],
    ),
  ]


def _bias(found) -> figures.Figure:
  trajectory = found.get('bias_trajectory') or {'steps': [], 'layers': []}
  choices = []
  for n, bias_TX in enumerate(trajectory['layers']):
    columns = np.asarray(bias_TX).T[: found['num_experts']]
    named = {f'expert {e}': bias_T for e, bias_T in enumerate(columns)}
    axes = ('step', 'bias')
    choices.append(_lines(f'layer {n}', axes, trajectory['steps'], named))
  return figures.Figure(
    id='bias',
    wide=True,
    title='Balancing bias over the run',
    caption='It is added to the probabilities when an expert is chosen, and '
    'moved after each step towards an even load.',
    kind='lines',
    choices=choices,
    missing='Nothing to draw: there is no experts.jsonl of the run beside this '
    'checkpoint. The bias as it is now is in the .json file.',
  )


def _lines(label, axes, x, named) -> dict[str, Any]:
  """A choice of curves by name; six colours, then another dash."""
  x = curves.short(x)
  traces = [
    {'name': name, 'x': x, 'y': curves.short(y), 'place': [i, i // 6]}
    for i, (name, y) in enumerate(named.items())
  ]
  titles = {'x_title': axes[0], 'y_title': axes[1]}
  return {'label': label, 'traces': traces, 'log': False, **titles}


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
