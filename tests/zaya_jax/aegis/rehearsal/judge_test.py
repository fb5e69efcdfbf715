# SPDX-License-Identifier: Apache-2.0
"""Each check of a rehearsal passes what is right and finds what is not."""

import copy
import pathlib
from fractions import Fraction

import pytest

from pipelines import order
from pipelines.order import shuffle
from zaya_jax import config as config_lib
from zaya_jax.aegis.rehearsal import judge, miniature, play
from zaya_jax.checkpoint import seal
from zaya_jax.config.recipe import segments

RECIPE = """
[sources]
web = "web"
code = "code"
cot = "cot"
[[phase]]
name = "one"
tokens = "8T"
mixture = {web = 0.7, code = 0.25, cot = 0.05}
batch = ["0:1024", "50B:2048", "200B:4096"]
lr = {from = 6e-4, to = 2e-4, shape = "cosine", warmup = "3T"}
flags = {"data.seq_len" = 4096, "model.rope_theta" = 1e4}
[[phase]]
name = "two"
tokens = "4T"
mixture = {web = 0.7, code = 0.25, cot = 0.05}
lr = {shape = "constant"}
flags = {"data.seq_len" = 4096, "data.batch_size" = 4096}
[[phase]]
name = "three"
tokens = "1.2T"
mixture = {cot = 0.86, web = 0.11, code = 0.03}
lr = {to = 0.0, shape = "linear"}
[phase.flags]
"data.seq_len" = 32768
"data.batch_size" = 512
"model.rope_theta" = 1e6
"mesh.fsdp" = 8
"""


@pytest.fixture(scope='module')
def plan(tmp_path_factory):
  return make_plan(tmp_path_factory.mktemp('recipe'), RECIPE)


def make_plan(folder, text):
  """The miniature of a recipe."""
  (folder / 'recipe.toml').write_text(text)
  real = config_lib.Config.parse([f'--recipe={folder}/recipe.toml'])
  small = miniature.write(segments.course(real), folder, 3)
  config = config_lib.Config.parse(
    [*miniature.FLAGS, f'--recipe={small}', '--run_dir=unused']
  )
  return miniature.Plan(segments.segments(config), ('one', 'two', 'three'))


def test_a_miniature_keeps_the_proportions(plan):
  sizes = [(s.seq_len, s.batch_size, s.steps) for s in plan.segments]
  assert sizes == [
    (32, 8, 6), (32, 16, 6), (32, 16, 6), (32, 16, 6), (256, 4, 6),
  ]  # fmt: skip
  assert plan.ends == [18, 24, 30]
  assert dict(plan.segments[-1].flags)['model.rope_theta'] == 1e6
  assert dict(plan.segments[-1].flags)['mesh.context'] == 2
  assert 'mesh.fsdp' not in dict(plan.segments[-1].flags)
  rate = plan.segments[0].rate
  assert (rate.start, rate.end) == (6e-4, 2e-4)
  assert rate.warmup / rate.tokens == pytest.approx(3 / 8, abs=1e-3)


def test_acts_go_through_all_of_it(plan):
  found = play.acts(plan, disturbed=True)
  assert [act.processes for act in found] == [1, 2, 4, 2]
  assert [act.phases for act in found] == [1, 2, 3, 3]
  kills = [kill for act in found for kill in act.kills]
  for end in (18, 24):  # Before, during and after each boundary's save.
    assert {('step', end), ('save', end), ('step', end + 1)} <= {*kills}
  for first, last in ((1, 17), (20, 23), (26, 29)):
    assert any(first <= at <= last for kind, at in kills if kind == 'step')
  assert not any(act.kills for act in play.acts(plan, disturbed=False))


def test_a_first_phase_of_divided_rows_has_a_process_for_each_part(tmp_path):
  text = RECIPE.replace('1e4}', '1e4, "mesh.context" = 4}')
  plan = make_plan(tmp_path, text)
  assert dict(plan.segments[0].flags)['mesh.context'] == 2
  first, *others = play.acts(plan, disturbed=True)
  assert first.processes == 2
  assert [act.processes for act in others] == [2, 4, 2]


class Run:
  """The files of a run that went as it should."""

  def __init__(self, plan, folder):
    self.run_dir, self.kills = pathlib.Path(folder), 2
    extents = [order.Extent(10**6, 256)] * 3
    stretches = [
      order.Stretch(s.rows, s.seq_len, s.weights) for s in plan.segments
    ]
    whole = order.Order(extents, stretches, 0)
    self.files = {'ledger.jsonl': [], 'metrics.jsonl': []}
    self.files['aegis/faults.jsonl'] = [{'fault': 'kill'}] * 2
    said = []
    for s in plan.segments:
      self.files['ledger.jsonl'] += [
        {
          'rows': [row, row + s.batch_size],
          'steps': [step - 1, step],
          'phase': s.phase,
          'outcome': 'refused' if step == 28 else 'trained',
          'sources': whole.counts(row, row + s.batch_size),
          'each': f'{step:016x}',
        }
        for step, row in zip(
          range(s.first_step + 1, s.stop_step + 1),
          range(s.first_row, s.stop_row, s.batch_size),
          strict=True,
        )
      ]
      for i in range(s.steps):
        row = s.first_row + i * s.batch_size
        step = s.first_step + i + 1
        self.files['metrics.jsonl'].append(
          {
            'step': step,
            'optim/lr': s.learning_rate(row),
            'train/loss': None if step == 28 else 5 - step / 20,
          }
        )
      said.append(self.begin(s.first_step, s.keep == 'params'))
      self.save(s.stop_step, s.stop_step)
    self.log = '\n'.join(said) + '\n'

  def word(self, number):
    return seal.short_print({'opt_state/mu': f'{number:016x}'}, 'opt_state')

  def begin(self, step, anew=False):
    word = self.word(0 if anew else step)
    return f'optimizer state {word} at step {step}'

  def save(self, step, number):
    folder = self.run_dir / 'checkpoints' / str(step)
    folder.mkdir(parents=True, exist_ok=True)
    found = {'params/w': 'a' * 16, 'opt_state/mu': f'{number:016x}'}
    seal.write(str(folder), {'step': step, 'fingerprint': found})

  def rows(self, name):
    return copy.deepcopy(self.files.get(name, []))

  def text(self, name):
    return self.log

  def command(self, *args):
    return [
      {'check': 'chain', 'valid': True, 'said': ''},
      {'check': 'content', 'valid': True, 'said': 'all'},
    ]


@pytest.fixture
def run(plan, tmp_path):
  return Run(plan, tmp_path / 'run')


@pytest.fixture
def other(plan, tmp_path):
  return Run(plan, tmp_path / 'other')


def test_what_is_right_passes(plan, run, other):
  assert 'all' in judge.ledger(plan, other, run)
  assert '30 steps, of which 1' in judge.digests(plan, other, run)
  assert 'one: [' in judge.quotas(plan, run)
  assert 'at most 0.0' in judge.shuffle(plan)
  assert '18, 24, 30' in judge.states(plan, other, run)
  assert '4 boundaries' in judge.optimizer(plan, run)
  assert '30 steps' in judge.rates(plan, run)
  assert 'at new RoPE bases' in judge.losses(plan, run)
  assert '2 kills' in judge.kills(plan, run)


def lines(run):
  return run.files['ledger.jsonl']


def quota(run):
  lines(run)[3]['sources'][0] += 1
  lines(run)[3]['sources'][1] -= 1


def drop(run):
  """At a boundary; a later start begins with what was saved."""
  good = run.begin(18)
  run.log = run.log.replace(good, f'{run.begin(18, anew=True)}\n{good}')


def keep_none(run):
  run.log = run.log.replace(run.word(18), run.word(12))


def say_nothing(run):
  run.log = run.log.replace(f'{run.begin(18)}\n', '')


def begin_elsewhere(run):
  run.log += f'{run.begin(19)}\n'


def keep_still(run):
  run.save(30, 18)


def unseal(run):
  run.save(24, 99)


BROKEN = {
  'a quota off by one': (
    judge.quotas, quota, 'phase one has',
  ),
  'a row repeated': (
    judge.digests,
    lambda run: lines(run)[9].update(each=lines(run)[8]['each']),
    'given something else',
  ),
  'a step missing': (
    judge.digests, lambda run: lines(run).pop(), 'steps are missing',
  ),
  'no refused step': (
    judge.digests,
    lambda run: lines(run)[27].update(outcome='trained'),
    'given something else',
  ),
  'the end missing': (
    judge.ledger, lambda run: lines(run).pop(), 'rows are missing',
  ),
  'another state': (judge.states, unseal, 'step 24'),
  'an optimizer dropped': (judge.optimizer, drop, 'step 18 began with'),
  'an old optimizer': (judge.optimizer, keep_none, 'step 18 began with'),
  'a boundary without a word': (
    judge.optimizer, say_nothing, r'nothing began at the steps \[18\]',
  ),
  'an optimizer from nowhere': (
    judge.optimizer, begin_elsewhere, 'step 19 began, and was not saved',
  ),
  'an optimizer that stands still': (
    judge.optimizer, keep_still, r'18 and \[30\] have the same',
  ),
  'another rate': (
    judge.rates,
    lambda run: run.files['metrics.jsonl'][20].update({'optim/lr': 1.9e-4}),
    'step 21 has 0.00019',
  ),
  'a jump at the boundary': (
    judge.losses,
    lambda run: run.files['metrics.jsonl'][24].update({'train/loss': 4.9}),
    'costs 1.1',
  ),
  'a loss that is not finite': (
    judge.losses,
    lambda run: run.files['metrics.jsonl'][3].update({'train/loss': None}),
    r'\[4\] have no finite loss',
  ),
  'a kill that did not come': (
    judge.kills, lambda run: run.files['aegis/faults.jsonl'].pop(), '1 of 2',
  ),
}  # fmt: skip


@pytest.mark.parametrize('kind', BROKEN)
def test_what_is_wrong_is_found(plan, run, other, kind):
  check, harm, said = BROKEN[kind]
  harm(run)
  both = check in (judge.ledger, judge.digests, judge.states)
  with pytest.raises(judge.Fault, match=said):
    check(plan, *([other] if both else []), run)


def test_a_phase_that_keeps_parameters_alone_begins_anew(tmp_path):
  text = RECIPE.replace(
    'shape = "linear"}', 'shape = "linear"}\nkeep = "params"'
  )
  plan = make_plan(tmp_path, text)
  run = Run(plan, tmp_path / 'run')
  assert '3 boundaries' in judge.optimizer(plan, run)
  good = run.log
  run.log = good.replace(run.begin(24, anew=True), run.begin(24))
  with pytest.raises(judge.Fault, match='step 24 began with'):
    judge.optimizer(plan, run)
  run.log = good.replace(run.begin(18), run.begin(18, anew=True))
  with pytest.raises(judge.Fault, match='step 18 began with'):
    judge.optimizer(plan, run)


@pytest.mark.parametrize(
  ('rows', 'said'),
  [
    ([{'nll': 2.0}, {'nll': 2.005}], ''),
    ([{'nll': 2.0}, {'nll': 2.02}], '2.0 and exported 2.02'),
    ([{'nll': float('nan')}] * 2, 'nan'),
    ([{'nll': float('inf')}] * 2, 'inf'),
    ([{'nll': 2.0}, {'code': 1}], '--mode=eval --source=out/hf failed'),
  ],
)
def test_an_export_that_computes_something_else_is_found(plan, run, rows, said):
  answers = iter([{'code': 0}, *rows])
  run.command = lambda *_: [next(answers)]
  if not said:
    assert '2.0050' in judge.model(plan, run, 'out/hf')
    return
  with pytest.raises(judge.Fault, match=said):
    judge.model(plan, run, 'out/hf')


def test_a_ledger_that_is_not_proven_is_found(plan, run, other):
  run.command = lambda *_: [
    {'check': 'chain', 'valid': False, 'reason': 'line 3 was changed'}
  ]
  with pytest.raises(judge.Fault, match='line 3 was changed'):
    judge.ledger(plan, other, run)


def test_an_order_of_four_rounds_is_found(plan, monkeypatch):
  key = shuffle.key
  monkeypatch.setattr(shuffle, 'key', lambda *of: key(*of)[:4])
  with pytest.raises(judge.Fault, match='had other rows'):
    judge.shuffle(plan)
  monkeypatch.setattr(shuffle, '_add', lambda x, other, key_, size: x)
  with pytest.raises(judge.Fault, match='correlation'):
    judge.shuffle(plan)


def test_quotas_are_those_of_a_list(plan):
  weights = (Fraction(7, 10), Fraction(1, 4), Fraction(1, 20))
  whole = order.Order(
    [order.Extent(10**6, 256)] * 3, [order.Stretch(None, 32, weights)], 0
  )
  for rows in (1, 2, 19, 20, 33):
    assert judge._due(weights, rows) == whole.counts(0, rows)
