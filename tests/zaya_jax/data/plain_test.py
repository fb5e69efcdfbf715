# SPDX-License-Identifier: Apache-2.0
"""A plain run told as a recipe has the same rows and rates; lies are named."""

import dataclasses
import json
import math
import types

import pytest

from zaya_jax import config as config_lib
from zaya_jax.config.recipe import segments
from zaya_jax.data import history, plain

STEPS, BATCH, LENGTH = 40, 2, 16
SIZE = BATCH * LENGTH
SCHEDULES = {
  'cosine': {'schedule': 'cosine'},
  'wsd': {'schedule': 'wsd', 'decay_steps': 8},
  'constant': {'schedule': 'constant'},
  'decay alone': {'schedule': 'wsd', 'decay_steps': 99, 'warmup_steps': 0},
  'longer': {'schedule': 'cosine', 'schedule_steps': 30},
  'untimed': {'schedule': 'cosine', 'schedule_steps': segments.UNTIMED},
}
LATER = """
[[phase]]
name = "later"
tokens = 640
mixture = { web = 1 }
lr = { to = 0, shape = "linear" }
"""


@pytest.fixture(autouse=True)
def shards(monkeypatch):
  """Folders whose shards have the hash of their name."""
  monkeypatch.setattr(plain.manifest, 'exists', lambda folder: True)
  monkeypatch.setattr(plain.manifest, 'read', lambda folder: folder)
  monkeypatch.setattr(plain.position, 'contents', lambda found: found)


def about(schedule='cosine', step=STEPS, left_out=0, **data):
  """The meta of a checkpoint of a plain run of two sources."""
  optim = {'lr': 3e-3, 'lr_final': 1e-4, 'warmup_steps': 5}
  settings = {'seq_len': LENGTH, 'batch_size': BATCH, 'record_tokens': 64}
  config = config_lib.Config(
    num_steps=STEPS,
    data=config_lib.DataConfig(
      dir=('web@0.7', 'my texts@0.3'), **{**settings, **data}
    ),
    optim=config_lib.OptimConfig(**{**optim, **SCHEDULES[schedule]}),
  )
  return json.loads(
    json.dumps(
      {
        'config': config.as_dict(),
        'tokens': step * SIZE,
        'data_index': (step + left_out) * BATCH,
        'order': {'sources': ['web', 'my texts']},
      }
    )
  )


def course(tmp_path, text):
  path = tmp_path / 'r.toml'
  path.write_text(text)
  # Another length and batch than those of the run: its phase says them.
  data = config_lib.DataConfig(seq_len=32, batch_size=4)
  config = config_lib.Config(recipe=str(path), run_dir='run', data=data)
  return config, dataclasses.replace(segments.course(config), whole=config)


@pytest.mark.parametrize('step', [1, 20, 33, STEPS])
@pytest.mark.parametrize('schedule', SCHEDULES)
def test_the_recipe_that_is_written_says_what_was_run(tmp_path, schedule, step):
  known = about(schedule, step)
  text = plain.text('run', known, step) + LATER
  config, found = course(tmp_path, text)
  history.check(config, found, known, step)
  optim = known['config']['optim']
  for now in range(step):
    here = segments.at(found.segments, now * BATCH)
    assert (here.seq_len, here.batch_size) == (LENGTH, BATCH)
    assert list(map(str, here.weights)) == ['7/10', '3/10']
    wanted = closed_form(types.SimpleNamespace(**optim), now)
    assert here.learning_rate(now * BATCH) == pytest.approx(wanted, rel=1e-9)
  assert found.segments[-1].phase == 'later'


def closed_form(optim, step):
  """The rate of a step, as docs/recipe.md and the help of the flags say."""
  if step < optim.warmup_steps:
    return optim.lr * (step + 1) / optim.warmup_steps
  if optim.schedule == 'constant' or optim.schedule_steps == segments.UNTIMED:
    return optim.lr
  if optim.schedule == 'wsd':
    decay = min(optim.decay_steps, STEPS - optim.warmup_steps)
    done = min(1, max(0, step - (STEPS - decay)) / decay)
    return optim.lr + (optim.lr_final - optim.lr) * done
  steps = (optim.schedule_steps or STEPS) - 5
  done = min(1, (step - 5) / steps)
  left = (1 + math.cos(math.pi * done)) / 2
  return optim.lr_final + (optim.lr - optim.lr_final) * left


LIES = [  # What, by what, the key, what was run.
  ('"0:2"', '"0:4"', 'batch was 2 and is 4 now'),
  ('= 16 }', '= 32 }', 'length was 16 and is 32 now'),
  ('web = 0.7', 'web = 0.6', 'mixture.web was 7/10 and is 2/3 now'),
  ('from = 0.003', 'from = 0.004', 'lr.from was 0.003 and is 0.004 now'),
  ('to = 0.0001', 'to = 0.0', 'lr.to was 0.0001 and is 0.0 now'),
  ('steps = 5', 'steps = 4', 'lr.warmup_steps was 5 and is 4 now'),
  ('warmup_steps = 5', 'warmup = 160', 'lr.warmup_steps was 5 and is not giv'),
  ('"cosine"', '"linear"', 'lr.shape was cosine and is linear now'),
  ('tokens = 1280', 'tokens = 1312', 'lr.tokens was 1280 and is 1312 now'),
  ('flags = { ', 'flags = { "model.rope_theta" = 5.0, ',
   'flags.model.rope_theta was 10000.0 and is 5.0 now'),
]  # fmt: skip


@pytest.mark.parametrize(('old', 'new', 'message'), LIES)
def test_what_was_not_run_is_named(tmp_path, old, new, message):
  known = about()
  text = plain.text('run', known, STEPS) + LATER
  assert old in text
  config, found = course(tmp_path, text.replace(old, new, 1))
  with pytest.raises(config_lib.UsageError) as error:
    history.check(config, found, known, STEPS)
  told = str(error.value)
  assert f'phase "plain", {message}' in told
  assert '--mode=ledger --output=FILE.toml --run_dir=run writes it' in told
  assert error.value.exit_code == 2


def test_a_flag_that_was_so_may_be_said(tmp_path):
  known = about()
  theta = known['config']['model']['rope_theta']
  text = plain.text('run', known, STEPS)
  text = text.replace(
    'flags = { ', f'flags = {{ "model.rope_theta" = {theta}, '
  )
  history.check(*course(tmp_path, text + LATER), known, STEPS)


@pytest.mark.parametrize(
  ('old', 'new', 'message'),
  [
    ('web = "web"', 'web = "other"', 'number 1 what the run has read from web'),
    ('web = "web"\n"my texts" = "my texts"\n',
     '"my texts" = "my texts"\nweb = "web"\n', 'and that is my texts in my te'),
  ],
)  # fmt: skip
def test_other_sources_are_named(tmp_path, old, new, message):
  known = about()
  text = plain.text('run', known, STEPS)
  assert old in text
  with pytest.raises(config_lib.UsageError) as error:
    history.check(*course(tmp_path, text.replace(old, new)), known, STEPS)
  assert message in str(error.value)


def test_sources_that_are_missing_are_named(tmp_path):
  text = '[sources]\nweb = "web"\n' + LATER.replace('to =', 'from = 1, to =')
  with pytest.raises(config_lib.UsageError, match='texts, and that is missing'):
    history.check(*course(tmp_path, text), about(), STEPS)


def test_batches_that_were_left_out_count(tmp_path):
  known = about('constant', 20, left_out=3)
  text = plain.text('run', known, 20)
  config, found = course(tmp_path, text)
  history.check(config, found, known, 20)
  assert found.segments[0].stop_row == (STEPS + 3) * BATCH
  shorter = text.replace(f'tokens = {(STEPS + 3) * SIZE}', 'tokens = 640')
  with pytest.raises(config_lib.UsageError, match='"plain", tokens was 1376'):
    history.check(*course(tmp_path, shorter), known, 20)


def test_a_batch_that_has_changed_is_told():
  with pytest.raises(config_lib.UsageError, match='batch_size=4 was another'):
    plain.phases(about(batch_size=4), STEPS)
