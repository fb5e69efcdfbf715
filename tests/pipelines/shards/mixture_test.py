# SPDX-License-Identifier: Apache-2.0

import dataclasses
from fractions import Fraction

import pytest

from pipelines import errors
from pipelines.shards import manifest, mixture


@pytest.mark.parametrize(
  'text, directory, weight',
  [
    ('a/b', 'a/b', Fraction(1)),
    ('a@0.25', 'a', Fraction(1, 4)),
    ('user@host/a@3', 'user@host/a', Fraction(3)),
    ('user@host/a', 'user@host/a', Fraction(1)),
    ('a@1e-3', 'a', Fraction(1, 1000)),
  ],
)
def test_weight_is_what_follows_the_last_at(text, directory, weight):
  expected = mixture.Part(directory=directory, weight=weight)
  assert mixture.parse([text]) == [expected]


@pytest.mark.parametrize(
  'text', ['a@0', 'a@-1', 'a@much', 'a@inf', 'a@nan', 'a@1e999999999']
)
def test_weight_that_is_no_positive_number_is_refused(text):
  with pytest.raises(errors.DataError, match='is not a weight') as caught:
    mixture.parse([text])
  assert caught.value.exit_code == 2


def test_no_folder_is_refused():
  with pytest.raises(errors.DataError, match='--data.dir is empty'):
    mixture.parse([])


def test_tokenizers_of_one_name_must_be_the_same(shards):
  data = manifest.load(shards)
  other = dataclasses.replace(data, tokenizer_sha256='0' * 64)
  parts = mixture.parse(['a', 'b'])
  mixture.check_same_tokenizer(parts, [data, data])
  with pytest.raises(errors.DataError, match='mixes tokenizers') as caught:
    mixture.check_same_tokenizer(parts, [data, other])
  assert caught.value.exit_code == 3
