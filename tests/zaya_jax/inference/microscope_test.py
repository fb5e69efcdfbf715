# SPDX-License-Identifier: Apache-2.0
"""The router microscope against the model in float64 NumPy."""

import copy
import json
import math

import numpy as np
import pytest

from pipelines import tokenizer as tokenizer_lib
from tests.support import run_files, runs, tiny
from tests.support.reference import zaya_numpy
from zaya_jax import config as config_lib
from zaya_jax.inference import microscope
from zaya_jax.inference import model as model_lib

CONFIG = tiny.config(vocab_size=320, num_layers=3)
TEXT = 'the cat sat on the mat; the dog sat on the log. ' * 20
LENGTH, TOKENS = 40, 750


@pytest.fixture(scope='module')
def model():
  params, buffers = tiny.arrays(CONFIG)
  return model_lib.Model(
    config=CONFIG,
    params=params,
    buffers=buffers,
    tokenizer=tokenizer_lib.load('bytes'),
  )


@pytest.fixture(scope='module')
def found(model):
  return microscope.inspect(model, TEXT, tokens=TOKENS, seq_len=LENGTH)


def _choices(model, params):
  """[N, T] by the reference, window for window."""
  ids = np.insert(model.tokenizer.encode(TEXT), 0, model.tokenizer.bos_id)
  windows = [ids[i : i + LENGTH] for i in range(0, TOKENS, LENGTH)]
  windows[-1] = windows[-1][: TOKENS % LENGTH]
  outputs = [
    zaya_numpy.forward(CONFIG, params, model.buffers, window)
    for window in windows
  ]
  # Near ties may go either way in float32.
  assert min(out.margin.min() for out in outputs) > 1e-5
  return np.concatenate([out.choice for out in outputs], axis=1)


@pytest.fixture(scope='module')
def choices(model):
  return _choices(model, model.params)


def test_load_is_that_of_the_reference(found, choices):
  assert found['tokens'] == TOKENS
  experts = CONFIG.num_experts
  for choice_T, layer in zip(choices, found['layers'], strict=True):
    count_X = np.bincount(choice_T, minlength=experts + 1)
    assert [one['tokens'] for one in layer['classes']] == count_X.tolist()
    share_E = count_X[:experts] / count_X[:experts].sum()
    entropy = -sum(p * math.log(p) for p in share_E if p) / math.log(experts)
    assert layer['load_entropy'] == pytest.approx(entropy)
    assert layer['max_violation'] == pytest.approx(experts * share_E.max() - 1)
    assert layer['dead'] == [e for e in range(experts) if not count_X[e]]
    few = [e for e in range(experts) if 0 < share_E[e] < 0.2 / experts]
    assert layer['nearly_dead'] == few
    assert layer['skip'] == pytest.approx(count_X[-1] / TOKENS)


def test_choices_by_eda_are_those_that_change_without_it(model, found, choices):
  for n, layer in enumerate(found['layers']):
    params = copy.deepcopy(model.params)
    eda = np.array(params['layers']['router']['eda'])
    eda[n] = 0
    params['layers']['router']['eda'] = eda
    changed = (_choices(model, params)[n] != choices[n]).mean()
    assert layer['eda']['changed_choices'] == pytest.approx(changed)
  assert found['layers'][0]['eda']['changed_choices'] == 0
  assert found['layers'][0]['eda']['incoming_share'] == 0
  assert any(layer['eda']['changed_choices'] for layer in found['layers'])


def test_liked_tokens_have_their_lift(model, found, choices):
  ids = np.insert(model.tokenizer.encode(TEXT), 0, model.tokenizer.bos_id)
  ids = ids[:TOKENS]
  likes, others = 0, 0
  for choice_T, layer in zip(choices, found['layers'], strict=True):
    for x, one in enumerate(layer['classes']):
      mine = ids[choice_T == x]
      for like in one['likes']:
        here, everywhere = (mine == like['id']), (ids == like['id'])
        assert like['tokens'] == here.sum()
        assert like['lift'] == pytest.approx(here.mean() / everywhere.mean())
      # All that are twice as frequent, and not by chance: of a Poisson number
      # the standard deviation is the root of its mean.
      clear = set()
      for v in {*mine.tolist()}:
        here, chance = (mine == v).sum(), (ids == v).mean() * len(mine)
        if here >= 2 * chance and here - chance >= 4 * chance**0.5 and here > 4:
          clear.add(v)
        others += here > chance and v not in clear
      assert {like['id'] for like in one['likes']} == clear
      likes += len(clear)
  assert likes > 2 and others > 20


def test_examples_are_places_of_the_text(found):
  examples = 0
  for layer in found['layers']:
    for one in layer['classes']:
      assert len(one['examples']) <= 3
      for before, token, after in one['examples']:
        assert before + token.replace('\u2423', ' ') + after in '<257>' + TEXT
        examples += 1
  assert examples > 10


def test_router_that_sends_all_to_one_expert_is_seen(model):
  buffers = copy.deepcopy(model.buffers)
  bias = np.zeros_like(buffers['layers']['router']['balance_bias'])
  bias[:, 1] = 5
  buffers['layers']['router']['balance_bias'] = bias
  layers = microscope.inspect(
    model_lib.Model(
      config=CONFIG,
      params=model.params,
      buffers=buffers,
      tokenizer=model.tokenizer,
    ),
    TEXT,
    tokens=TOKENS,
    seq_len=LENGTH,
  )['layers']
  for layer in layers:
    assert layer['dead'] == [0, 2]
    assert layer['max_violation'] == 2 and layer['load_entropy'] == 0
    assert layer['classes'][1]['likes'] == []


def test_expert_with_less_than_a_fifth_of_an_even_share_is_nearly_dead(model):
  # Of 100 tokens an even share of four experts is 25.
  choice_BL = np.repeat([0, 1, 2, 3], [48, 48, 4, 0])[None]
  ones_BL, mask_BL = np.ones((1, 100)), np.ones((1, 100), bool)
  names = ('weight', 'entropy', 'own', 'incoming')
  values = {
    'choice_BL': choice_BL,
    'alone_BL': choice_BL,
    **{f'{name}_BL': ones_BL for name in names},
    'eda_R': np.ones(2),
    'bias_X': np.zeros(5),
  }
  config = tiny.config(num_experts=4)
  reader = microscope._Reader(model.tokenizer, choice_BL, mask_BL)
  layer = microscope._layer(config, reader, 1, values)
  assert (layer['dead'], layer['nearly_dead']) == ([3], [2])
  choice_BL[0, 0] = 2  # Five tokens are a fifth.
  assert microscope._layer(config, reader, 1, values)['nearly_dead'] == []


@pytest.mark.parametrize(
  'source, text', [('a', ''), ('a,b', 'README.md'), ('', 'README.md')]
)
def test_one_checkpoint_and_one_text_are_needed(source, text):
  with pytest.raises(config_lib.UsageError, match='one checkpoint on one text'):
    _look(source, text)


def _look(source, text, **changes):
  microscope.main(
    config_lib.Config(
      mode='report',
      source=str(source),
      report=config_lib.ReportConfig(router=True, tokens=TOKENS),
      eval=config_lib.EvalConfig(text=str(text)),
      **changes,
    )
  )


def test_checkpoint_of_a_run(tmp_path, capsys):
  run = runs.save(tmp_path / 'run', CONFIG)
  rng = np.random.default_rng(0)
  bias = rng.normal(size=(2, 3, 4)).round(5).tolist()
  rows = [{'step': s, 'share': [], 'bias': b} for s, b in enumerate(bias)]
  odd = {'step': 7, 'share': [], 'bias': [['x']]}
  run_files.lines(run / 'experts.jsonl', [*rows, odd])
  (tmp_path / 'text.txt').write_text(TEXT)
  _look(run / 'checkpoints' / '70', tmp_path / 'text.txt')
  assert capsys.readouterr().out == f'{run}/router.html\n{run}/router.json\n'
  found = json.loads((run / 'router.json').read_text())
  assert found['tokens'] == TOKENS
  trajectory = np.array(found['bias_trajectory']['layers'])
  assert np.array_equal(trajectory.swapaxes(0, 1), bias)
  assert (run / 'plotly.min.js').exists()


@pytest.mark.parametrize(
  'content, words',
  [(None, 'cannot be read'), (b'', 'is empty'), (b'\xff', 'cannot be read')],
)
def test_text_that_cannot_be_read_is_refused(tmp_path, content, words):
  run = runs.save(tmp_path / 'run', CONFIG)
  path = tmp_path / 'text.txt'
  if content is not None:
    path.write_bytes(content)
  with pytest.raises(config_lib.UsageError, match=f'--eval.text.*{words}'):
    _look(run, path)
  assert not (run / 'router.html').exists()
