# SPDX-License-Identifier: Apache-2.0
"""Results on one text get no lines on another."""

import pytest

from benchmarks import texts


def on(train, held_out='bb', size=400, packages=('linux_1.deb',)):
  corpus = {'train': {'sha256': train * 8}, 'held_out': {'sha256': held_out}}
  corpus['packages'] = dict.fromkeys(packages, 'a hash')
  return {'corpus': corpus, 'held_out_bytes': size}


def test_results_on_another_text_get_no_more_lines():
  texts.same([on('a'), on('a')], on('a'), 'x.jsonl')
  # The same text of another package, and no shards of a race at all.
  texts.same([on('a')], on('a', packages=('linux_2.deb',)), 'x.jsonl')
  texts.same([{'bpb': 1.0}], {}, 'x.jsonl')
  texts.same([{'text': 'mine'}], {'text': 'mine'}, 'x.jsonl')
  for other in (on('c'), on('a', held_out='c'), on('a', size=401), {}):
    with pytest.raises(SystemExit, match='--output=x.jsonl has runs on corpus'):
      texts.same([on('a'), on('a')], other, 'x.jsonl')
    with pytest.raises(SystemExit, match='would be on corpus aaaaaaaa'):
      texts.same([on('a'), other], on('a'), 'x.jsonl')


def test_what_differs_between_texts_is_told():
  with pytest.raises(SystemExit) as error:
    texts.same([on('a')], on('c', packages=('linux_2.deb',)), 'x.jsonl')
  text = str(error.value)
  assert 'aaaaaaaa, scored on 400 bytes of bb, and' in text
  assert '(linux_1.deb there, linux_2.deb now)' in text
  with pytest.raises(SystemExit, match='has runs on yours, .* on mine; scores'):
    texts.same([{'text': 'yours'}], {'text': 'mine'}, 'x.jsonl')
  with pytest.raises(SystemExit, match='would be on no corpus; scores'):
    texts.same([on('a')], {}, 'x.jsonl')
