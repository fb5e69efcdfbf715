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
  windows: np.ndarray, *, bos_id: int, pad_id: int
) -> dict[str, np.ndarray]:
  """Turns windows into what the model and the loss take.

  Args:
    windows: int32 [B, L + 1].
    bos_id: begins a document, and with it a new segment.
    pad_id: replaces NO_TOKEN.

  Returns:
    Arrays [B, L]. `tokens` and `targets` int32; `weights` float32, 1 where
    there is a target that counts; `segment_ids` int32, 1, 2, … by document
    within the window and 0 where there is no token; `positions` int32, from 0
    at the start of the window and of each document.
  """
  there = windows >= 0
  ids = np.where(there, windows & (EXCEPTION - 1), np.int32(pad_id))
  tokens, here = ids[:, :-1], there[:, :-1]
  starts = here & ((tokens == bos_id) ^ (windows[:, :-1] & EXCEPTION != 0))
  starts[:, 0] = True
  place = np.arange(tokens.shape[1], dtype=np.int32)
  begin = np.maximum.accumulate(starts * place, axis=1)
  return {
    'tokens': tokens,
    'targets': ids[:, 1:],
    'weights': (there & (windows & UNCOUNTED == 0))[:, 1:].astype(np.float32),
    'segment_ids': np.cumsum(starts, axis=1, dtype=np.int32) * here,
    'positions': (place - begin) * here,
  }
