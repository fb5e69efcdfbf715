# SPDX-License-Identifier: Apache-2.0
"""Phases: numbers of tokens, learning rates, and what is refused."""

import math

import pytest

from zaya_jax import config as config_lib
from zaya_jax.config import fields, recipe

GOOD = {
  'name': 'name = "mid"',
  'tokens': 'tokens = "10k"',
  'mixture': 'mixture = {web = 0.7, code = 1}',
  'lr': 'lr = {from = 1e-2, to = 1e-3}',
}


def _load(tmp_path, **changes):
  lines = {**GOOD, **changes}.values()
  path = tmp_path / 'r.toml'
  text = '[sources]\nweb = "a"\ncode = "b"\n[[phase]]\n' + '\n'.join(lines)
  path.write_text(text)
  (found,) = recipe.load(str(path)).phases
  return found


@pytest.mark.parametrize(
  ('text', 'number'),
  [
    (7, 7), ('8T', 8 * 10**12), ('1.2T', 12 * 10**11), ('50B', 5 * 10**10),
    ('0.5k', 500), ('12', 12), ('1.0001k', None), ('8G', None), ('-1', None),
    (True, None), (-1, None), (1.5, None), ('', None), ('1e3', None),
    (10**19, None),
  ],
)  # fmt: skip
def test_tokens_are_numbers_with_units(text, number):
  assert fields.count(text) == number


def test_a_phase_is_read(tmp_path):
  found = _load(tmp_path, batch='batch = ["0:8", "2k:16"]')
  assert (found.name, found.tokens, found.keep) == ('mid', 10_000, 'all')
  assert found.batch == ((0, 8), (2000, 16))
  assert found.mixture['web'] * 10 == 7  # Exact: no binary fraction.


WRONG = [
  ({'name': ''}, 'phase "1", name is missing'),
  ({'tokens': 'tokens = 0'}, 'phase "mid", tokens = 0 must be'),
  ({'tokens': 'tokens = "8G"'}, "tokens = '8G' must be"),
  ({'tokns': 'tokns = 1'}, 'tokns is not known; did you mean tokens?'),
  ({'mixture': ''}, 'mixture must give shares'),
  ({'mixture': 'mixture = {wbe = 1}'}, 'mixture.wbe is not known; did you'),
  ({'mixture': 'mixture = {web = 0}'}, 'mixture.web = 0 must be a number'),
  ({'mixture': 'mixture = {web = -0.5}'}, 'mixture.web = -0.5 must be'),
  ({'mixture': 'mixture = {web = nan}'}, 'mixture.web = nan must be'),
  ({'mixture': 'mixture = {web = true}'}, 'mixture.web = True must be'),
  ({'keep': 'keep = "some"'}, "keep = 'some' must be"),
  ({'batch': 'batch = ["8"]'}, 'must be a list of "TOKENS:BATCH_SIZE"'),
  ({'batch': 'batch = ["0:0"]'}, 'must be a list of "TOKENS:BATCH_SIZE"'),
  ({'batch': 'batch = ["1k:8"]'}, 'must begin at 0 and go up'),
  ({'batch': 'batch = ["0:8", "2k:4", "1k:2"]'}, 'must begin at 0'),
  ({'batch': 'batch = ["0:8", "10k:4"]'}, 'goes beyond the 10,000 tokens'),
  ({'lr': ''}, 'lr.from is missing'),
  ({'lr': 'lr = {from = 1, to = -1}'}, 'lr.to = -1 must be'),
  ({'lr': 'lr = {from = 1, shape = "round"}'}, "lr.shape = 'round' must be"),
  ({'lr': 'lr = {from = 1, shape = "linear"}'}, 'lr.to goes with'),
  ({'lr': 'lr = {from = 1, to = 0, shape = "constant"}'}, 'lr.to goes with'),
  ({'lr': 'lr = {from = 1, warmup = "11k"}'}, "lr.warmup = '11k' must be"),
  (
    {'lr': 'lr = {from = 1, warmup = "1k", warmup_steps = 2}'},
    'lr.warmup_steps = 2 must be a whole number of steps, in place of',
  ),
  ({'lr': 'lr = {from = 1, warmup_steps = 2.5}'}, 'lr.warmup_steps = 2.5 must'),
  ({'flags': 'flags = {"optim.lr" = 1.0}'}, 'flags."optim.lr" is no flag'),
  ({'flags': 'flags = {"seq_len" = 2}'}, 'these may: data.seq_len'),
  (
    {'flags': 'flags = {"data.batch_size" = 2}', 'batch': 'batch = ["0:8"]'},
    'flags."data.batch_size" and batch are both given',
  ),
  ({'max_epochs': 'max_epochs = {web = 0}'}, 'max_epochs.web = 0 must be'),
]


@pytest.mark.parametrize(('changes', 'message'), WRONG)
def test_what_is_wrong_is_named(tmp_path, changes, message):
  with pytest.raises(config_lib.UsageError) as error:
    _load(tmp_path, **changes)
  assert message in str(error.value)
  assert error.value.exit_code == 2
  assert str(error.value).startswith(f'--recipe={tmp_path}')


def test_the_rate_is_its_closed_form(tmp_path):
  lr = 'lr = {from = 1e-2, to = 1e-3, shape = "cosine", warmup = "1k"}'
  rate = _load(tmp_path, lr=lr).rate
  assert rate.at(0) == 0.0 and rate.at(500) == pytest.approx(5e-3)
  for tokens in (1000, 1001, 5500, 9999, 10_000, 12_000):
    done = min(1, (tokens - 1000) / 9000)
    wanted = 1e-3 + 9e-3 * 0.5 * (1 + math.cos(math.pi * done))
    assert rate.at(tokens) == pytest.approx(wanted, abs=1e-12)
  linear = _load(tmp_path, lr='lr = {from = 1, to = 0, shape = "linear"}').rate
  assert linear.at(2500) == 0.75
  constant = _load(tmp_path, lr='lr = {from = 0.5}').rate
  assert constant.at(0) == constant.at(9999) == constant.end == 0.5


def test_warmup_in_steps_begins_with_a_share(tmp_path):
  lr = 'lr = {from = 0.8, warmup_steps = 4}'
  rate = _load(tmp_path, lr=lr).rate.counted(100)
  found = [rate.at(100 * step) for step in range(6)]
  assert found == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])
  with pytest.raises(config_lib.UsageError, match='12,000 tokens, and the pha'):
    _load(tmp_path, lr=lr).rate.counted(3000)
