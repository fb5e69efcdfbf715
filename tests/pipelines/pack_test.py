# SPDX-License-Identifier: Apache-2.0

import numpy as np

from pipelines import pack

BOS, PAD = 9, 8


def _inputs(rows, **how):
  windows = np.array(rows, np.int32)
  return pack.model_inputs(windows, bos_id=BOS, pad_id=PAD, **how)


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


def test_window_without_masks_is_one_document():
  rows = [
    [1, 2, BOS, 3, 4, BOS, 5],
    [BOS, 1 | pack.EXCEPTION, 2 | pack.UNCOUNTED, BOS, 4, -1, -1],
  ]
  apart, one = _inputs(rows), _inputs(rows, mask_documents=False)
  assert apart['segment_ids'].tolist() == [
    [1, 1, 2, 2, 2, 3],
    [1, 2, 2, 3, 3, 0],
  ]
  assert one.pop('segment_ids').tolist() == [[1] * 6, [1] * 5 + [0]]
  assert one.pop('positions').tolist() == [[0, 1, 2, 3, 4, 5], [*range(5), 0]]
  for name, array in one.items():
    assert array.tolist() == apart[name].tolist()


def test_rows_are_independent():
  """Plain ones and others, together and alone; against the definition."""
  rng = np.random.default_rng(0)
  windows = rng.integers(0, 10, (40, 13)).astype(np.int32)
  windows[10:] |= (rng.random((30, 13)) < 0.2) * np.int32(pack.UNCOUNTED)
  windows[20:] |= (rng.random((20, 13)) < 0.2) * np.int32(pack.EXCEPTION)
  windows[30:][rng.random((10, 13)) < 0.2] = pack.NO_TOKEN
  rng.shuffle(windows)
  together = _inputs(windows)
  for i, window in enumerate(windows):
    alone = _inputs([window])
    segment = position = 0
    for j in range(12):
      here, token = window[j] >= 0, window[j] & (pack.EXCEPTION - 1)
      begins = (token == BOS) != bool(window[j] & pack.EXCEPTION)
      if j == 0 or (here and begins):
        segment, position = segment + 1, 0
      target = window[j + 1]
      counts = target >= 0 and not target & pack.UNCOUNTED
      expected = {
        'tokens': token if here else PAD,
        'targets': target & (pack.EXCEPTION - 1) if target >= 0 else PAD,
        'weights': float(counts),
        'segment_ids': segment * here,
        'positions': position * here,
      }
      for name, value in expected.items():
        assert together[name][i, j] == alone[name][0, j] == value
      position += 1


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
