# SPDX-License-Identifier: Apache-2.0
"""The law as it is read: its arithmetic, its ranges, and its absence."""

import pytest

from zaya_jax import config as config_lib
from zaya_jax.model import flops
from zaya_jax.plan import law as law_lib

TEXT = """\
held_out = 0.011
[constants]
E = 0.5
A = 100.0
a = 0.5
B = 1000.0
b = 0.5
g = 0.25
c = 0.5
[covers]
active = [1e6, 1e7]
total = [1e6, 1e8]
bytes = [1e8, 1e9]
context = [512, 4096]
[bytes_per_token]
8192 = 3.0
320 = 1.0
32768 = 4.0
[about]
text = "a corpus"
"""


@pytest.fixture
def law(tmp_path):
  path = tmp_path / 'law.toml'
  path.write_text(TEXT)
  return law_lib.Law.read(path)


def test_the_loss_is_that_sum(law):
  # Effective size: 1e4 * 16^(1/4) = 2e4; rows of 4 KiB: half of it.
  size = {'active': 1e4, 'total': 16e4, 'bytes': 1e10, 'context': 4096}
  expected = (0.5 + 100 / 2e4**0.5 + 1000 / 1e5) / 2
  assert law.loss(size) == pytest.approx(expected, rel=1e-12)
  more = {**size, 'total': 16e6}
  assert law.loss(more) < law.loss(size)
  # Rows that are longer than any that it was fitted to count as these do.
  assert law.loss({**size, 'context': 2048}) > law.loss(size)
  assert law.loss({**size, 'context': 8192}) == law.loss(size)


def test_what_is_beyond_is_said_by_how_much(law):
  inside = {'active': 2e6, 'total': 1e8, 'bytes': 1e8, 'context': 600}
  assert law.beyond(inside) == {}
  found = law.beyond({**inside, 'active': 3e7, 'bytes': 2e7, 'context': 8192})
  assert found == {
    'active': pytest.approx(3),
    'bytes': pytest.approx(0.2),
    'context': pytest.approx(2),
  }


def test_bytes_of_a_token_lie_between_vocabularies(law):
  def size(rows):
    words = [f'--model.vocab_size={rows}', '--data.seq_len=128']
    return law.size(config_lib.Config.parse(words), 10)

  assert size(8192)['bytes'] == pytest.approx(30)
  assert size(8192)['context'] == pytest.approx(384)
  assert size(16_384)['bytes'] == pytest.approx(35)  # Half way, in log.
  assert size(256)['bytes'] == 10 and size(99_999)['bytes'] == 40


@pytest.mark.parametrize('tied', [True, False])
def test_sizes_leave_the_vocabulary_out(tied):
  model = config_lib.ModelConfig(tie_embeddings=tied)
  larger = config_lib.ModelConfig(tie_embeddings=tied, vocab_size=9999)
  found = law_lib.parameters(model)
  assert found == law_lib.parameters(larger)
  assert found['active'] == flops.parameters(model).active
  one = config_lib.ModelConfig(tie_embeddings=tied, num_experts=1, skip='off')
  count = law_lib.parameters(one)
  assert count['total'] == count['active']


def test_without_a_file_there_is_no_law(tmp_path):
  assert law_lib.Law.read(tmp_path / 'law.toml') is None
