# SPDX-License-Identifier: Apache-2.0
"""Texts that begin and end apart, in the slots of one cache.

Each slot is a row of the cache, filled from its first column. A prompt is read
in pieces of a few sizes, so that few programs serve all lengths, and between
two pieces the other slots go on; then the slot takes part in the step, which is
one program for all of them. Here is what happens on the device; what comes when
is decided by `serve.engine`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zaya_jax.inference.decoding import decoder as decoder_lib
from zaya_jax.inference.decoding import network, programs

# Tokens of a prompt that are read at once; each divides the next.
PIECES = (32, 128, 512)


class Slots:
  """The state of some texts on the device.

  Args:
    decoder: the network; its cache is not divided among devices.
    count: texts at the same time.
    size: tokens that a slot has room for, at least.
    stop_ids: tokens that end a text.
    pieces: sizes of pieces, ascending, each a divisor of the next.
  """

  def __init__(
    self,
    decoder: decoder_lib.Decoder,
    count: int,
    size: int,
    stop_ids: Sequence[int] = (),
    pieces: Sequence[int] = PIECES,
  ):
    self._decoder = decoder
    largest = min([p for p in pieces if p >= size] or [pieces[-1]])
    self._pieces = [p for p in pieces if p <= largest]
    # No piece may reach beyond the end: what is written there would be moved.
    self.size = -(-size // largest) * largest
    self.count = count
    self.steps = decoder.about.steps
    self._state = self._new(stop_ids)

  def _new(self, stop_ids: Sequence[int]) -> dict[str, Any]:
    cache = network.init_cache(
      self._decoder.about.config, self._decoder.weights, self.count, self.size
    )
    # Rows that are filled apart.
    cache = dataclasses.replace(cache, length=jnp.zeros_like(cache.position))
    each = lambda value, dtype: jnp.full((self.count,), value, dtype)
    return {
      'cache': cache,
      'tokens': each(0, jnp.int32),
      'keys': jax.random.split(jax.random.key(0), self.count),
      'left': each(0, jnp.int32),
      'temperature': each(0, jnp.float32),
      'top_p': each(1, jnp.float32),
      'scored': each(False, bool),
      'stop_ids': jnp.array(stop_ids, jnp.int32),
    }

  def warm(self) -> None:
    """Compiles what every text needs."""
    for size in self._pieces:
      self._read(0, np.zeros(size, np.int32), 0, True, False, size)
    self.end(0)
    self.step()

  def piece(self, left: int) -> int:
    """How many of `left` tokens are read next."""
    return min(left, self._pieces[-1])

  def read(
    self, slot: int, ids: np.ndarray, begin: int, scored: bool = False
  ) -> dict[str, jax.Array]:
    """Reads the next piece of a prompt.

    Args:
      slot: where to.
      ids: the prompt, [L] int32; of its last token only the step knows more.
      begin: tokens that were read; 0: the slot begins anew.
      scored: whether to say how likely each token after these is.

    Returns:
      What `sampling.scores` gives for tokens `begin + 1` to the end of the
      piece, and behind them for padding; nothing if not `scored`.
    """
    count = self.piece(len(ids) - 1 - begin)
    size = next(p for p in self._pieces if p >= count)
    # With the token that follows the piece.
    part = np.zeros(size + 1, np.int32)
    part[: count + 1] = ids[begin : begin + count + 1]
    return self._read(slot, part, count, begin == 0, scored, size)

  def _read(self, slot, part, count, fresh, scored, size):
    values = {
      'tokens': jnp.asarray(part[None, :size]),
      'next': jnp.asarray(np.resize(part[1:], size)),
      'count': jnp.int32(count),
      'slot': jnp.int32(slot),
      'fresh': jnp.asarray(fresh),
    }
    return self._run(programs.read, (values, self._state), scored)

  def start(
    self,
    slot: int,
    last: int,
    max_tokens: int,
    *,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    scored: bool = False,
  ) -> None:
    """From now on a slot takes part in the step.

    Args:
      slot: one whose prompt was read but for its last token.
      last: this token.
      max_tokens: the most to add.
      temperature: 0: the likeliest token.
      top_p: as of `Decoder.tokens`.
      seed: of its samples, which do not depend on other slots.
      scored: whether the step says how likely its tokens are.
    """
    values = {
      'slot': jnp.int32(slot),
      'tokens': jnp.int32(last),
      'left': jnp.int32(max_tokens),
      'temperature': jnp.float32(temperature),
      'top_p': jnp.float32(top_p),
      'keys': jax.random.key(seed),
      'scored': jnp.asarray(scored),
    }
    self._run(programs.settle, (values, self._state))

  def end(self, slot: int) -> None:
    """From now on a slot takes no part in the step."""
    self.start(slot, 0, 0)

  def step(self) -> dict[str, jax.Array]:
    """The next tokens of all slots, as `programs.slot_steps` tells them."""
    return self._run(programs.slot_steps, (self._state,))

  def _run(self, program, args, *how):
    state = len(args) - 1
    compiled = self._decoder.compiled(program, args, state, *how)
    found, self._state = compiled(self._decoder.weights, *args)
    return found
