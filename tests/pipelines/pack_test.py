# SPDX-License-Identifier: Apache-2.0

import numpy as np

from pipelines import pack

BOS, PAD = 9, 8


def _inputs(rows):
  return pack.model_inputs(np.array(rows, np.int32), bos_id=BOS, pad_id=PAD)


def test_documents_within_a_window_are_told_apart():
  inputs = _inputs([[1, 2, BOS, 3, 4, BOS, 5]])
  assert inputs['tokens'].tolist() == [[1, 2, BOS, 3, 4, BOS]]
  assert inputs['targets'].tolist() == [[2, BOS, 3, 4, BOS, 5]]
  assert inputs['segment_ids'].tolist() == [[1, 1, 2, 2, 2, 3]]
  assert inputs['positions'].tolist() == [[0, 1, 0, 1, 2, 0]]
  assert inputs['weights'].tolist() == [[1] * 6]


def test_document_at_the_window_start_is_the_first_segment():
  inputs = _inputs([[BOS, 1, 2]])
  assert inputs['segment_ids'].tolist() == [[1, 1]]
  assert inputs['positions'].tolist() == [[0, 1]]


def test_unknown_last_target_has_no_weight():
  inputs = _inputs([[1, 2, -1]])
  assert inputs['weights'].tolist() == [[1, 0]]
  assert inputs['targets'].tolist() == [[2, PAD]]
  assert inputs['segment_ids'].tolist() == [[1, 1]]


def test_padding_is_segment_zero():
  inputs = _inputs([[1, 2, -1, -1, -1], [-1, -1, -1, -1, -1]])
  assert inputs['tokens'].tolist() == [[1, 2, PAD, PAD], [PAD] * 4]
  assert inputs['weights'].tolist() == [[1, 0, 0, 0], [0] * 4]
  assert inputs['segment_ids'].tolist() == [[1, 1, 0, 0], [0] * 4]
  assert inputs['positions'].tolist() == [[0, 1, 0, 0], [0] * 4]


def test_types():
  kinds = {name: array.dtype for name, array in _inputs([[1, 2, 3]]).items()}
  assert kinds.pop('weights') == np.float32
  assert set(kinds.values()) == {np.dtype(np.int32)}


def test_windows_cover_every_target_once():
  for size in range(1, 12):
    tokens = np.arange(size)
    windows = [
      pack.window(tokens, i, 4) for i in range(pack.num_windows(size, 4))
    ]
    targets = [t for w in windows for t in w[1:].tolist() if t >= 0]
    assert targets == list(range(1, size))
    assert all((w[1:] >= 0).any() for w in windows)
