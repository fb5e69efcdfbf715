# SPDX-License-Identifier: Apache-2.0
"""Which rows of a sequence each device of the mesh axis `context` holds.

Zig-zag: the row is cut into 2n chunks and device r holds chunks r and
2n - 1 - r. A late chunk meets many keys and an early one few, so that causal
attention costs every device the same.
"""

from typing import Any

import jax
import numpy as np

from zaya_jax import config as config_lib


def order(length: int, n: int) -> np.ndarray:
  """[length] int32: the row that stands at each place, device after device.

  Raises:
    UsageError: if the chunks of `n` devices would not be equal.
  """
  chunks = 2 * n
  if length < 1 or length % chunks:
    raise config_lib.UsageError(
      f'--mesh.context={n} cuts a sequence into {chunks} equal chunks and '
      f'--data.seq_len={length} is no multiple of {chunks}; change either.'
    )
  rows = np.arange(length, dtype=np.int32).reshape(chunks, -1)
  return np.stack([rows[:n], rows[: n - 1 : -1]], axis=1).reshape(-1)


def check(length: int, n: int, look_back: int) -> None:
  """Whether rows of `length` tokens can be divided among `n` devices.

  Raises:
    UsageError: if their chunks would differ, or be shorter than the
      `look_back` tokens that convolutions need of the chunk before.
  """
  if n == 1:
    return
  order(length, n)
  chunk, least = length // (2 * n), max(look_back, 1)
  if chunk < least:
    raise config_lib.UsageError(
      f'--mesh.context={n} leaves {chunk} tokens of --data.seq_len={length} in '
      f'a chunk and the convolutions look back {least}; lower it or take at '
      f'least {2 * n * least} tokens.'
    )


def divide(batch: Any, n: int) -> Any:
  """A batch whose arrays [B, L, ...] stand in the order of the devices.

  Cut into `n` equal parts along L, part r is what device r holds. Positions and
  segments travel with the tokens, so that a loss does not notice the order.
  """
  return jax.tree.map(lambda a: a[:, order(a.shape[1], n)], batch)
