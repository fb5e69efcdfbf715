# SPDX-License-Identifier: Apache-2.0
"""Windows of tokens to model inputs: a pure function of the window.

A window is int32 [L + 1]: the tokens of L positions and the token after them.
`NO_TOKEN` stands where the text has ended. Two high bits of a token say what
differs from plain text, in which every token counts in the loss and BOS, and
nothing else, begins a document.
"""

import numpy as np

NO_TOKEN = -1
UNCOUNTED = 1 << 30  # The token does not count in the loss.
EXCEPTION = 1 << 29  # BOS that begins no document, or another that does.

# Bits of the byte that a record may hold for each of its tokens.
COUNTS = 1  # The token counts in the loss.
BEGINS = 2  # The token is the first of a document.
EMPTY = 4  # There is none: the next conversation would not fit into the window.


def num_windows(num_tokens: int, seq_len: int) -> int:
  """Windows of `seq_len` positions that have at least one target."""
  return max(0, -(-(num_tokens - 1) // seq_len))


def window(tokens: np.ndarray, index: int, seq_len: int) -> np.ndarray:
  """Returns window `index` of `tokens`, int32 [L + 1], filled with NO_TOKEN."""
  part = tokens[index * seq_len : (index + 1) * seq_len + 1]
  if len(part) == seq_len + 1:
    return part.astype(np.int32)
  result = np.full(seq_len + 1, NO_TOKEN, np.int32)
  result[: len(part)] = part
  return result


def model_inputs(
  windows: np.ndarray,
  *,
  bos_id: int,
  pad_id: int,
  mask_documents: bool = True,
) -> dict[str, np.ndarray]:
  """Turns windows into what the model and the loss take.

  Args:
    windows: int32 [B, L + 1].
    bos_id: begins a document, and with it a new segment.
    pad_id: replaces NO_TOKEN.
    mask_documents: whether a document begins a segment; if not, the window is
      a single one.

  Returns:
    Arrays [B, L]. `tokens` and `targets` int32; `weights` float32, 1 where
    there is a target that counts; `segment_ids` int32, 1, 2, … within the
    window and 0 where there is no token; `positions` int32, from 0 at the start
    of each segment.
  """
  rows, length = len(windows), windows.shape[1] - 1
  ids, weights = windows, np.ones((rows, length), np.float32)
  starts = windows[:, :-1] == bos_id
  # Few windows hold more than ids: what costs time is done for these alone.
  odd = np.flatnonzero((windows.view(np.uint32) >= EXCEPTION).any(axis=1))
  if len(odd):
    some = windows[odd]
    there = some >= 0
    ids = windows.copy()
    ids[odd] = np.where(there, some & (EXCEPTION - 1), np.int32(pad_id))
    weights[odd] = (there & (some & UNCOUNTED == 0))[:, 1:]
    exception = some[:, :-1] & EXCEPTION != 0
    starts[odd] = there[:, :-1] & ((ids[odd, :-1] == bos_id) ^ exception)
  starts[:, 1:] &= mask_documents
  starts[:, 0] = True
  segments, positions = _segments(starts)
  if len(odd):
    segments[odd] *= there[:, :-1]
    positions[odd] *= there[:, :-1]
  return {
    'tokens': ids[:, :-1],
    'targets': ids[:, 1:],
    'weights': weights,
    'segment_ids': segments,
    'positions': positions,
  }


def _segments(starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Numbers of segments, from 1, and places in them; both int32 [B, L].

  Args:
    starts: where they begin, bool [B, L]; one does at each row's start.
  """
  rows, length = starts.shape
  at = np.flatnonzero(starts).astype(np.int32)
  sizes = np.diff(np.append(at, starts.size))
  row = at // length
  number = (
    np.arange(1, len(at) + 1) - np.searchsorted(row, np.arange(rows))[row]
  )
  segments = np.repeat(number.astype(np.int32), sizes)
  positions = np.arange(starts.size, dtype=np.int32) - np.repeat(at, sizes)
  return segments.reshape(starts.shape), positions.reshape(starts.shape)
