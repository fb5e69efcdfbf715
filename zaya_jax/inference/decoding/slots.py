# SPDX-License-Identifier: Apache-2.0
"""Texts that begin and end apart, in the slots of one cache.

Each slot is a row of the cache, filled from its first column. A prompt is read
in pieces of a few sizes, so that few programs serve all lengths, and between
two pieces the other slots go on; then the slot takes part in the step, which is
one program for all of them, or for a power of two of slots where few have a
text. Here is what happens on the device; what comes when is decided by
`serve.engine`.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zaya_jax.inference.decoding import decoder as decoder_lib
from zaya_jax.inference.decoding import network, programs
from zaya_jax.inference.decoding import prefixes as prefixes_lib

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
    prefixes: as many slots full of beginnings of prompts are kept.
  """

  def __init__(
    self,
    decoder: decoder_lib.Decoder,
    count: int,
    size: int,
    stop_ids: Sequence[int] = (),
    pieces: Sequence[int] = PIECES,
    prefixes: int = 0,
  ):
    self._decoder = decoder
    largest = min([p for p in pieces if p >= size] or [pieces[-1]])
    self._pieces = [p for p in pieces if p <= largest]
    # No piece may reach beyond the end: what is written there would be moved.
    self.size = -(-size // largest) * largest
    self.count = count
    self.steps = decoder.about.steps
    self._state = self._new(stop_ids)
    self._shapes = jax.eval_shape(lambda state: state, self._state)
    self._few = [count]  # Steps of so many slots are compiled.
    self._later: set[int] = set()  # Sizes of scored pieces that are not.
    self._pool = None
    if prefixes:
      self._pool = prefixes_lib.Pool(
        decoder, prefixes * self.size, self._pieces[0]
      )

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
      'no_repeat': each(0, jnp.int32),
      # Only of slots that may not repeat.
      'seen': jnp.full((self.count, self.size), -1, jnp.int32),
      'stop_ids': jnp.array(stop_ids, jnp.int32),
    }

  def warm(self) -> None:
    """Compiles what every text needs."""
    for size in self._pieces:
      self._read(0, np.zeros(size, np.int32), 0, True, False, size)
      if self._pool:
        rows = self._pool.some(size)
        self._keep(0, 0, rows)
        self._restore(0, 0, 0, rows)
    self.start(0, 0, 0, no_repeat=1, ids=np.zeros(1, np.int32))
    self.end(0)
    self.step()

  def rest(self, scored: bool = True) -> list[Callable[[], None]]:
    """What compiles the programs that only some texts need.

    They may be called in another thread. Until then steps are of all slots, and
    prompts that are scored wait: see `reads`.

    Args:
      scored: whether there will be such prompts.
    """
    self._later = {*self._pieces} if scored else set()
    # A step over few copies their rows: no more than a part of the cache.
    most = max(1, self.count // 4) if self.count > 1 else 0
    counts = [1 << i for i in range(most.bit_length())]
    few = [functools.partial(self._compile_few, count) for count in counts]
    pieces = sorted(self._later)
    return [*(functools.partial(self._compile_scored, p) for p in pieces), *few]

  def _compile_scored(self, size: int) -> None:
    part = self._part(0, np.zeros(size, np.int32), 0, True, size)
    try:
      self._compiled(programs.read, (part, self._shapes), True)
    finally:  # Who asks is told what is wrong.
      self._later.discard(size)

  def _compile_few(self, count: int) -> None:
    slots = jnp.arange(count, dtype=jnp.int32)
    self._compiled(programs.slot_steps, (slots, self._shapes))
    self._few = sorted({*self._few, count})

  def reads(self, scored: bool) -> bool:
    """Whether pieces can be read without waiting for a compiler."""
    return not (scored and self._later)

  def piece(self, begin: int, left: int) -> int:
    """How many of `left` tokens are read next, if `begin` were."""
    return min(left, self._limit(begin))

  def _limit(self, begin: int) -> int:
    """The most tokens of a piece, whatever comes behind it.

    So prompts that begin alike have the same pieces. The first ones are small:
    less is read again of short prompts.
    """
    first = self._pieces[:2][-1]
    return max(p for p in self._pieces if p <= max(begin, first))

  def restore(self, slot: int, ids: np.ndarray) -> int:
    """Gives a slot what is known of a prompt that begins; then `read` it.

    Args:
      slot: where to.
      ids: the prompt, [L] int32.

    Returns:
      How many of its tokens need not be read.
    """
    if not self._pool:
      return 0
    ends, end = [], 0
    while left := len(ids) - 1 - end:
      end += self.piece(end, left)
      ends.append(end)
    read = 0
    for end, rows in self._pool.find(slot, ids, ends):
      self._restore(slot, read, end, rows)
      read = end
    return read

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
    count = self.piece(begin, len(ids) - 1 - begin)
    size = next(p for p in self._pieces if p >= count)
    # With the token that follows the piece.
    part = np.zeros(size + 1, np.int32)
    part[: count + 1] = ids[begin : begin + count + 1]
    found = self._read(slot, part, count, begin == 0, scored, size)
    # Another program may round in another way.
    if self._pool and count and not scored:
      is_end = count < self._limit(begin)
      rows = self._pool.add(slot, ids, begin, size, is_end)
      if rows is not None:
        self._keep(slot, begin, rows)
    return found

  def _read(self, slot, part, count, fresh, scored, size):
    values = self._part(slot, part, count, fresh, size)
    return self._run(programs.read, (values, self._state), scored)

  def _part(self, slot, part, count, fresh, size):
    return {
      'tokens': jnp.asarray(part[None, :size]),
      'next': jnp.asarray(np.resize(part[1:], size)),
      'count': jnp.int32(count),
      'slot': jnp.int32(slot),
      'fresh': jnp.asarray(fresh),
    }

  def _keep(self, slot, begin, rows):
    where = {'slot': jnp.int32(slot), 'begin': jnp.int32(begin), 'rows': rows}
    args = (where, self._state, self._pool.cache)
    keep = self._compiled(programs.keep, args)
    _, self._pool.cache = keep(self._decoder.weights, *args)

  def _restore(self, slot, begin, end, rows):
    where = {'slot': jnp.int32(slot), 'begin': jnp.int32(begin)}
    where |= {'end': jnp.int32(end), 'rows': rows}
    self._run(programs.restore, (where, self._pool.cache, self._state))

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
    no_repeat: int = 0,
    ids: np.ndarray | None = None,
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
      no_repeat: no sequence of this many tokens comes twice; 0: any may.
      ids: the prompt, which `no_repeat` needs.
    """
    values = {
      'slot': jnp.int32(slot),
      'tokens': jnp.int32(last),
      'left': jnp.int32(max_tokens),
      'temperature': jnp.float32(temperature),
      'top_p': jnp.float32(top_p),
      'keys': jax.random.key(seed),
      'scored': jnp.asarray(scored),
      'no_repeat': jnp.int32(no_repeat),
    }
    if no_repeat:
      seen = np.full(self.size, -1, np.int32)
      seen[: len(ids)] = ids
      values['seen'] = jnp.asarray(seen)
    self._run(programs.settle, (values, self._state))

  def end(self, slot: int) -> None:
    """From now on a slot takes no part in the step."""
    self.start(slot, 0, 0)

  def step(self, taking: Sequence[int] = ()) -> dict[str, jax.Array]:
    """The next tokens of slots, as `programs.slot_steps` tells them.

    Args:
      taking: those that may have tokens left; others need not be computed.
    """
    count = min(n for n in self._few if n >= len(taking))
    others = [slot for slot in range(self.count) if slot not in taking]
    # In their order: all of them are not moved.
    slots = jnp.array(sorted([*taking, *others][:count]), jnp.int32)
    return self._run(programs.slot_steps, (slots, self._state))

  def _run(self, program, args, *how):
    """Runs what changes the state, its last argument."""
    run = self._compiled(program, args, *how)
    found, self._state = run(self._decoder.weights, *args)
    return found

  def _compiled(self, program, args, *how):
    return self._decoder.compiled(program, args, len(args) - 1, *how)
