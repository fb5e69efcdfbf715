# SPDX-License-Identifier: Apache-2.0
"""Whether a position in the data means what it meant when it was saved."""

import types
from fractions import Fraction

import pytest

from pipelines import errors as data_errors
from pipelines import order
from zaya_jax import config as config_lib
from zaya_jax.checkpoint import errors
from zaya_jax.data import position

ROW = 100
CONFIG = config_lib.Config(run_dir='runs/a')


def loader(*weights, seq_len=16, seed=1, tokens=9999, shards='ab', more=()):
  """What a loader shows of itself."""
  shares = tuple(map(Fraction, weights or (1,)))
  stretches = [order.Stretch(None, seq_len, shares)]
  if more:
    stretches = [order.Stretch(ROW, seq_len, shares), *more]
  manifests = [
    types.SimpleNamespace(
      splits={
        'train': types.SimpleNamespace(
          shards=[types.SimpleNamespace(sha256=x) for x in shards]
        )
      }
    )
    for _ in shares
  ]
  return types.SimpleNamespace(
    order=order.Order(
      [order.Extent(tokens, 64)] * len(shares), stretches, seed
    ),
    state=ROW,
    manifests=manifests,
    directories=[f'data/{i}' for i in range(len(shares))],
  )


def about(made, row=ROW, **changes):
  made.state = row
  kept = {**position.describe(made), **changes}
  return {'data_index': row, 'order': kept, 'versions': {'grain': '0.1'}}


def check(before, now, *changes):
  position.check(
    CONFIG, before, now, changes=changes, versions={'grain': '0.2'}
  )


@pytest.mark.parametrize(
  'now',
  [
    loader(),
    loader(6),
    loader(more=[order.Stretch(None, 64, (Fraction(1),))]),
    loader(3, 0),
  ],
  ids=['same', 'the same share', 'another length from here', 'a new source'],
)
def test_same_past_goes_on(now):
  check(
    about(loader()), now, '--data.dir: data/0 -> moved', '--optim.lr: 1 -> 2'
  )


@pytest.mark.parametrize(
  'now, change',
  [
    (loader(seq_len=32), '--data.seq_len: 16 -> 32'),
    (loader(seed=2), '--seed: 1 -> 2'),
    (loader(1, 9), "--data.dir: ['a@9', 'b@1'] -> ['a@1', 'b@9']"),
  ],
  ids=['length', 'seed', 'weights'],
)
def test_settings_of_another_order_are_refused(now, change):
  before = loader(9, 1) if len(now.manifests) == 2 else loader()
  with pytest.raises(config_lib.UsageError) as caught:
    check(about(before), now, '--optim.lr: 1 -> 2', change)
  assert f'({change})' in str(caught.value)
  assert '--restore=runs/a' in str(caught.value)


@pytest.mark.parametrize(
  'before, now',
  [((994, 3, 3), (994, 4, 2)), ((1,), (10_000, 1))],
  ids=['a rare source was read more often', 'a rare source is not due yet'],
)
def test_other_weights_are_refused_where_the_last_rows_do_not_show_them(
  before, now
):
  row = 700
  before, now = loader(*before), loader(*now)
  assert before.order.fingerprint(row - 64) == now.order.fingerprint(row - 64)
  with pytest.raises(config_lib.UsageError, match='--data.dir: a -> b'):
    check(about(before, row), now, '--data.dir: a -> b')


def test_stretches_that_read_alike_are_one():
  shares = (Fraction(1, 2), Fraction(1, 2))
  more = [
    order.Stretch(50, 16, shares),
    order.Stretch(None, 16, tuple(map(Fraction, (3, 1)))),
  ]
  now = loader(*shares, more=more)
  check(about(loader(1, 1), ROW + 20), now)
  check(about(loader(1, 1), ROW + 50), now)
  with pytest.raises(errors.CheckpointError):
    check(about(loader(1, 1), ROW + 51), now)


def test_checkpoints_that_know_no_weights_are_still_read():
  old = about(loader(3, 1))
  del old['order']['read']
  check(old, loader(3, 1))
  with pytest.raises(config_lib.UsageError):
    check(old, loader(1, 3), '--data.dir: a -> b')


def test_nothing_is_compared_before_the_first_row():
  check({'data_index': 0}, loader())


@pytest.mark.parametrize('before', [None, {'version': 1, 'past': ''}])
def test_older_order_is_refused_with_the_way_out(before):
  old = {'data_index': ROW, **({'order': before} if before else {})}
  with pytest.raises(config_lib.UsageError, match='--restore=runs/a') as caught:
    check(old, loader())
  assert caught.value.exit_code == 2


@pytest.mark.parametrize('tokens', [9999, 9000])
def test_replaced_shards_are_refused(tokens):
  with pytest.raises(data_errors.DataError, match='data/0 are not') as caught:
    check(about(loader()), loader(shards='ac', tokens=tokens))
  assert caught.value.exit_code == 3


def test_shards_that_were_not_read_may_change():
  before = about(loader(1, 0))
  now = loader(1, 0)
  now.manifests[1] = loader(shards='x').manifests[0]
  check(before, now)


def test_another_order_of_the_same_settings_names_the_versions():
  with pytest.raises(errors.CheckpointError, match=r'0\.1.* 0\.2') as caught:
    check(about(loader(), past='another'), loader())
  assert caught.value.exit_code == 3
